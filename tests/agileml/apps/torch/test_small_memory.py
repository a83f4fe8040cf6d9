"""Batches of loader processes in a container whose /dev/shm is small, as Docker's 64 MB."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from agileml.application import InputError
from agileml.apps.torch.batches.loader import Loader

TORCHS = (
    "unable to allocate shared memory(shm) for file </torch_23343_2084175093_0>: No space left on device (28)"
)


@pytest.mark.parametrize("said", [TORCHS, "of the user's own code"])
def test_a_batch_without_room_in_shared_memory_is_a_sentence(said: str) -> None:
    """It was an error of the user's own code."""
    batch: Future[Any] = Future()
    batch.set_exception(RuntimeError(said))
    expected = InputError if said == TORCHS else RuntimeError
    with pytest.raises(expected, match=r"/dev/shm.*--shm-size=2g" if said == TORCHS else said):
        Loader._result(batch)
