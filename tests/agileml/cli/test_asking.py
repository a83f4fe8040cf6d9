"""The question before something goes: who may answer it, and the exit code of each answer."""

import io

import pytest
import typer

from agileml.cli.asking import ask, check_terminal
from agileml.cli.market_preview import ask_to_submit
from agileml.config.job import load
from tests.agileml.market.test_preview import DEMO


def test_an_answer_may_come_from_a_pipe_and_an_empty_one_is_told_what_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    ask("Remove these 2?")
    with pytest.raises(
        typer.BadParameter, match=r"^Remove these 2\? There is nobody to ask here: say --yes$"
    ):
        ask("Remove these 2?")
    with pytest.raises(typer.BadParameter, match="nobody to ask here: say --yes"):
        check_terminal("Buy machines on EC2?")


def test_ctrl_c_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupted())
    with pytest.raises(typer.Abort):
        ask("Remove these 2?")


def test_who_declines_gets_the_exit_code_that_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, so that a shell's `&&` does not go on as after a run that is done."""
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(typer.Exit) as declined:
        ask_to_submit(load(DEMO.parent / "aws.yaml"), yes=False)
    assert declined.value.exit_code == 1
