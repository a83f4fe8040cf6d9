"""`proteus run CONFIG --sequential --out DIR` on a disk that has no room left once the report is to be written."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

from agileml.cli import main
from agileml.session import session

LIMIT_BYTES = 20_000  # on the size of a file: the report is larger, the rest is not

build = session.build_report


def build_on_a_full_disk(*arguments: Any) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
    return build(*arguments)


def run(arguments: Sequence[str]) -> None:
    config, out = arguments
    session.build_report = build_on_a_full_disk
    sys.argv = ["proteus", "run", config, "--sequential", "--out", out]
    main()


if __name__ == "__main__":
    run(sys.argv[1:])
