"""Memory for a whole model per version, cut into partitions, so that a reader of all partitions needs no copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agileml.application import Array
from agileml.core.parameters.layout import Layout


class Arena:
    """Memory for the next versions of all partitions of a machine. It lives as long as any block of it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._wholes: dict[int, list[Array | None]] = {}  # by version, one per dense table

    def blocks(self, partition: int, version: int) -> tuple[Array | None, ...]:
        """Uninitialized memory for a partition's dense blocks in a version; None for sparse tables."""
        if version not in self._wholes:
            # A partition is at most one version ahead of another.
            self._wholes = {v: wholes for v, wholes in self._wholes.items() if v == version - 1}
            self._wholes[version] = [
                None if table.sparse else np.empty(table.rows * table.columns, table.dtype)
                for table in self._layout.tables
            ]
        return tuple(
            None if whole is None else whole[slice(*self._layout.range_of(index, partition))]
            for index, whole in enumerate(self._wholes[version])
        )


def joined(pieces: Sequence[Array]) -> Array | None:
    """The array that these pieces make up in order; None if they are not neighbours in one array."""
    whole = pieces[0].base
    if not isinstance(whole, np.ndarray) or whole.ndim != 1 or not whole.flags.c_contiguous:
        return None
    at = whole.ctypes.data
    for piece in pieces:
        if piece.base is not whole or piece.ndim != 1 or (piece.size and piece.ctypes.data != at):
            return None
        at += piece.nbytes
    return whole.view() if at == whole.ctypes.data + whole.nbytes else None
