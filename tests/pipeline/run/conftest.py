"""One thread for torch, as the workers of a pipeline have by default: sums depend on the number of threads."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass
