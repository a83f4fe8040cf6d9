"""A hint to the processor, for numba code: bring memory near that will be read soon."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LINE_BYTES = 64  # of a cache; where lines are longer, some hints are repeats


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """prefetch(address: uintp): fetch the cache line at `address`, which may be any. Nothing else changes."""

    def hint(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32 = ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        form = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        # To read (0), into all levels of the cache (3), as data (1).
        builder.call(
            builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], form),
            [pointer, i32(0), i32(3), i32(1)],
        )
        return context.get_dummy_value()

    return types.void(types.uintp), hint
