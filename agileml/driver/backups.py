"""Reads the parts of a cut from the machines that keep its backups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray

from agileml.application import Array
from agileml.driver.ray_answers import RayAnswers
from agileml.errors import RunError


def begin_read(
    handles: Sequence[Any], clock: int, answers: RayAnswers
) -> Callable[[], list[tuple[Array, ...]] | None]:
    """Ask for the blocks of a cut while the run goes on.

    handles: the actor that keeps each partition. The function that is returned gives the blocks, or None while they are
    on their way; it raises RunError when a machine has lost its part or died.
    """
    references = [handle.final_blocks.remote(partition, clock) for partition, handle in enumerate(handles)]

    def read() -> list[tuple[Array, ...]] | None:
        ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        if len(ready) < len(references):
            return None
        try:
            parts = answers.get(references)
        except ray.exceptions.RayError as error:
            raise RunError("a machine that holds a part of the cut has died") from error
        if any(part is None for part in parts):
            raise RunError("a machine has no part of the cut any more")
        return list(parts)

    return read


def read_last(handles: Sequence[Any], method: str, clock: int, answers: RayAnswers) -> list[Any]:
    """The parts of the last cut, as `method` of the actor that keeps each gives it. Raises RunError where one died."""
    references = [
        getattr(handle, method).remote(partition, clock) for partition, handle in enumerate(handles)
    ]
    try:
        parts = answers.get(references)
    except ray.exceptions.RayError as error:
        raise RunError(
            "a machine that holds the result died before it was read; a checkpoint of the last clock has it too"
        ) from error
    assert all(part is not None for part in parts), "a backup lacks its part of the final cut"
    return list(parts)
