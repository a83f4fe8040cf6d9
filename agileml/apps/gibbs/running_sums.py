"""The weights of all topics, added up on the way: the loop that a token spends most of its time in.

Written for LLVM by hand. From a plain loop numba makes one that writes each sum to memory and reads it back before the
next addition, which takes three times as long.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # of float32: a vector of 512 bits; LLVM splits it where the CPU's are shorter

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_COUNTS = {types.uint16: ir.VectorType(ir.IntType(16), LANES), types.float32: _FLOATS}


@intrinsic
def add_up(context: Any, row: Any, coefficient: Any, beta: Any, sums: Any) -> Any:
    """sums[v] = sums[v - 1] + coefficient[v] (row[v] + beta), for vectors v = 0, 1, ... of LANES elements each.

    row: uint16 or float32; all others: float32. All arrays have one length, a multiple of LANES, and lie in memory
    without gaps. Each operation is rounded by itself.
    """

    def loop(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32 = ir.IntType(32)
        any_value = ir.Constant(_FLOATS, ir.Undefined)
        one = builder.insert_element(any_value, arguments[2], i32(0))
        prior = builder.shuffle_vector(one, any_value, ir.Constant(ir.VectorType(i32, LANES), [0] * LANES))
        total = cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, [0.0] * LANES))
        arrays = {
            number: context.make_array(signature.args[number])(context, builder, arguments[number])
            for number in (0, 1, 3)
        }

        def place(number: int, vector: Any, at: Any) -> Any:
            return builder.gep(builder.bitcast(arrays[number].data, vector.as_pointer()), [at])

        vectors = builder.sdiv(arrays[3].nitems, arrays[3].nitems.type(LANES))
        counted = _COUNTS[row.dtype]
        with cgutils.for_range(builder, vectors) as at:
            counts = builder.load(place(0, counted, at.index), align=row.dtype.bitwidth // 8)
            if counted is not _FLOATS:
                counts = builder.uitofp(counts, _FLOATS)
            factors = builder.load(place(1, _FLOATS, at.index), align=4)
            weights = builder.fmul(factors, builder.fadd(counts, prior))
            so_far = builder.fadd(builder.load(total), weights)
            builder.store(so_far, total)
            builder.store(so_far, place(3, _FLOATS, at.index), align=4)
        return context.get_dummy_value()

    return types.void(row, coefficient, types.float32, sums), loop
