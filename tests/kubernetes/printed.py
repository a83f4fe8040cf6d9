"""What `proteus k8s` prints, and one object of it."""

from __future__ import annotations

import pytest

from agileml.cli import main
from bidbrain.kubernetes.manifest import Manifest


def the(kind: str, found: list[Manifest]) -> Manifest:
    (only,) = (each for each in found if each["kind"] == kind)
    return only


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["k8s", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err
