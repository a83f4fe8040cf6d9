"""The user's code fails: the run ends with that traceback, says where, and never hangs or blames somebody else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agileml
from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.core.protocol.commands import HaltKind
from agileml.errors import RunError
from tests.agileml.process.engine_rig import Rig

JOB = {
    "application": "package.module:Class",
    "clocks": 6,
    "clocks_per_pass": 2,
    "slices": 8,
    "machines": {"reliable": 1, "transient": 1, "max": 8},
}


class Works(Application):
    """Fails in the method that `fails` names, in the way of `how`."""

    fails = ""
    how: BaseException = RuntimeError("no such luck")

    def __init__(self) -> None:
        super().__init__(Settings(slices=8, clocks_per_pass=2))

    def _may_fail(self, method: str) -> None:
        if self.fails == method:
            raise self.how

    def tables(self) -> list[Table]:
        self._may_fail("tables")
        return [Table("w", 1, 4)]

    def initial(self, table: Table) -> Array:
        self._may_fail("initial")
        return super().initial(table)

    def load(self, slice_index: int) -> int:
        self._may_fail("load")
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        self._may_fail("process")
        return Updates({"w": np.ones((1, 4), np.float32)}, 1.0, 1)

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        self._may_fail("evaluate")
        return {}

    def describe(self) -> dict[str, Any]:
        self._may_fail("describe")
        return {}


def failing(method: str, how: BaseException | None = None) -> Works:
    application = Works()
    application.fails = method
    if how is not None:
        application.how = how
    return application


@pytest.mark.parametrize("method", ["tables", "initial", "load", "process", "evaluate", "describe"])
def test_every_method_that_fails_ends_the_run_with_its_traceback(method: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunError, match="RuntimeError: no such luck") as failed:
        agileml.run(JOB, failing(method), sequential=True, out=str(out))
    assert "raise self.how" in failed.value.trace
    assert (out / "model.safetensors").exists() == (method in ("evaluate", "describe"))
    assert not (out / "summary.json").exists()


def test_what_breaks_the_contract_is_a_sentence(tmp_path: Path) -> None:
    class Twice(Works):
        def tables(self) -> list[Table]:
            return [Table("w", 1, 4), Table("w", 1, 4)]

    class Short(Works):
        def initial(self, table: Table) -> Array:
            return np.zeros(3, np.float32)

    for number, application in enumerate([Twice(), Short()]):
        with pytest.raises(RunError, match=r"^application: ") as failed:
            agileml.run(JOB, application, sequential=True, out=str(tmp_path / str(number)))
        assert not failed.value.trace


@pytest.mark.parametrize("how", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize("method", ["load", "process"])
def test_leaving_is_a_failure_as_well_and_no_hang(method: str, how: BaseException, tmp_path: Path) -> None:
    ran = Rig(JOB, tmp_path, failing(method, how)).finish()
    assert ran.halted is not None
    assert ran.halted.kind is HaltKind.USER_CODE
    assert type(how).__name__ in ran.halted.reason
    assert "raise self.how" in ran.halted.trace


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cannot read caf\udce9.jpg", r"cannot read caf\udce9.jpg"),
        ("bad batch " + "7, " * (6 << 20), "bad batch 7, 7,"),
    ],
    ids=["no utf-8", "18 MB"],
)
def test_what_cannot_travel_as_it_is_is_told_all_the_same(said: str, shown: str, tmp_path: Path) -> None:
    ran = Rig(JOB, tmp_path, failing("process", RuntimeError(said))).finish()
    assert ran.halted is not None
    assert ran.halted.kind is HaltKind.USER_CODE
    assert shown in ran.halted.reason
    assert len(ran.halted.reason) < 200_000


@pytest.mark.parametrize("method", ["tables", "load", "process"])
def test_what_a_library_says_of_a_presigned_address_shows_no_signature(method: str, tmp_path: Path) -> None:
    """The reason and the traceback are in the log, the report and what others see of the run."""
    how = RuntimeError("403 of https://me:word@host/a.parquet?X-Amz-Signature=abcdef")
    with pytest.raises(RunError) as failed:
        agileml.run(JOB, failing(method, how), sequential=True, out=str(tmp_path / "run"))
    said = [str(failed.value), failed.value.trace]
    if method != "tables":
        ran = Rig(JOB, tmp_path, failing(method, how)).finish()
        assert ran.halted is not None
        said += [ran.halted.reason, ran.halted.trace]
    for text in said:
        assert "403 of https://...@host/a.parquet?..." in text
        assert "abcdef" not in text and "word" not in text


def test_the_command_says_it_in_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agileml.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "of_the_user.py").write_text(
        "from tests.agileml.process.test_user_code import Works\n"
        "class Broken(Works):\n"
        "    def __init__(self, settings):\n"
        "        raise KeyError('a setting')\n"
    )
    (tmp_path / "job.yaml").write_text("application: of_the_user:Broken\nclocks: 3\n")
    with pytest.raises(SystemExit) as left:
        main(["run", "job.yaml", "--sequential"])
    shown = capsys.readouterr().err.splitlines()
    assert left.value.code == 1
    assert shown[-1] == "proteus: application: KeyError: 'a setting'"
    assert "    raise KeyError('a setting')" in shown
    assert not (tmp_path / "runs").exists()
