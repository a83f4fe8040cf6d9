"""A command of `proteus`, called in the process of the tests."""

from __future__ import annotations

import pytest

from agileml.cli import main


def proteus(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)
