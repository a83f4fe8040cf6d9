"""How long the driver waits for answers of Ray's head."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ray

from agileml.cli import main
from agileml.cluster.ray_cluster import RAYS_LIMIT, GcsWatch, gcs_limit_s
from agileml.errors import HeadLostError

LIMIT_S = 40.0  # Ray ends the process after 60
HERE = frozenset({"here"})


class Gcs:
    """One that answers again at `answers_at_s`. Its clock runs while somebody waits for it."""

    def __init__(self, answers_at_s: float) -> None:
        self.now_s = 0.0
        self.answers_at_s = answers_at_s
        self.watch = GcsWatch(self._live_nodes, lambda: self.now_s)

    def _live_nodes(self, timeout_s: float) -> frozenset[str] | None:
        if self.now_s + timeout_s < self.answers_at_s:
            self.now_s += timeout_s
            return None
        self.now_s = max(self.now_s, self.answers_at_s)
        return HERE

    def wait(self) -> frozenset[str]:
        """Look until it answers."""
        while (alive := self.watch.live_nodes()) is None:
            self.now_s += 3.0  # in which a call to an actor was not answered
        return alive


@pytest.fixture(autouse=True)
def rays_usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAYS_LIMIT, raising=False)


@pytest.mark.parametrize("answers_at_s", [0.0, 2.0, 10.0, LIMIT_S - 1])
def test_a_head_that_comes_back_is_waited_for(answers_at_s: float) -> None:
    gcs = Gcs(answers_at_s)
    assert gcs.wait() == HERE
    assert answers_at_s <= gcs.now_s <= answers_at_s + 3


def test_a_head_that_others_run_is_given_up_before_ray_ends_the_process() -> None:
    gcs = Gcs(float("inf"))
    with pytest.raises(HeadLostError, match=r"has not answered for 40 s.*--resume"):
        gcs.wait()
    assert LIMIT_S <= gcs.now_s < LIMIT_S + 7


def test_each_silence_begins_anew() -> None:
    gcs = Gcs(LIMIT_S - 5)
    gcs.wait()
    gcs.answers_at_s = gcs.now_s + LIMIT_S - 5
    assert gcs.wait() == HERE


def test_a_time_in_which_nobody_looked_is_no_silence() -> None:
    """A look fails, the run has its answer all the same, and much later another look fails."""
    gcs = Gcs(float("inf"))
    assert gcs.watch.live_nodes() is None
    gcs.now_s += 3 * LIMIT_S
    assert gcs.watch.live_nodes() is None
    with pytest.raises(HeadLostError):
        gcs.wait()


def test_where_ray_waits_for_longer_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gcs_limit_s() == LIMIT_S
    monkeypatch.setenv(RAYS_LIMIT, "600")
    assert Gcs(500.0).wait() == HERE


class Starved:
    """A client of a GCS that has taken the connection, and answers no question in time."""

    def __init__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        def ask(*_: object, **__: object) -> None:
            raise ray.exceptions.RpcError("Deadline Exceeded", rpc_code=4)

        return ask


@pytest.mark.parametrize(
    "words", [["status"], ["machines", "list"], ["machines", "terminate", "--all", "--yes"]], ids=" ".join
)
def test_a_head_that_does_not_answer_in_time_is_one_sentence(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("job_server", "nodes"):
        monkeypatch.setattr(f"agileml.cluster.{module}.gcs_client", Starved)
        monkeypatch.setattr(f"agileml.cluster.{module}.check_alive", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        main([*words, "--address", "10.0.0.1:6379"])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "head of the cluster at 10.0.0.1:6379 does not answer (Deadline Exceeded" in line
