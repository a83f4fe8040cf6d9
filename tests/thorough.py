"""On how many examples a property is tried."""

from __future__ import annotations

import os

IS_THOROUGH = "THOROUGH" in os.environ  # as `make test-all` has it


def examples(most: int) -> int:
    """All of them in `make test-all`, a third elsewhere: `make test` is for every change, and draws the same ones."""
    return most if IS_THOROUGH else -(-most // 3)
