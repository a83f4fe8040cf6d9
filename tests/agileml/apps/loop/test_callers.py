"""Where a loop stands: what the process that starts a run could not go on behind is refused before machines start."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

import agileml
from agileml.application import InputError
from agileml.apps.loop.callers import loop_around
from tests.agileml.apps.loop.scripts import BODY, PREPARE, loop, script, values

pytestmark = pytest.mark.usefixtures("one_thread")

FIT = "def fit(batch):\n" + indent(BODY.strip(), "    ") + "\n"
INFINITE = "def infinite():\n    while True:\n        yield from loader\n"
EPOCH = "def epoch():\n" + indent(loop(), "    ")
PASS = "for number in trainer.passes():\n"
REFUSED = {
    "a batch to look at": (
        "print(next(iter(loader))[0].shape)\n" + loop(),
        r"found a batch that was taken before the loop, as by next\(iter\(loader\)\)",
    ),
    "epochs": (
        "for epoch in range(3):\n" + indent(loop(), "    "),
        r"found its loop inside another one \(train\.py:\d+\), expected `for number in trainer\.passes",
    ),
    "epochs of a function": (EPOCH + "while True:\n    epoch()\n", "found its loop inside another one"),
    "without an end": (INFINITE + FIT + "it = infinite()\nfor _ in range(9): fit(next(it))\n", "inside another one"),
    "next": (
        FIT + "it = iter(loader)\nfor _ in range(9):\n    fit(next(it))\n",
        r"found next\(\) in a loop \(train\.py:\d+\), expected `for batch in loader:`",
    ),
    "passes in a loop": ("for rate in (1, 2):\n    for number in trainer.passes(): pass\n", "found it inside a loop"),
    "a pass left early": (
        PASS + indent(loop(BODY + "break\n"), "    "),
        "found pass 0 left before it was over, expected a loop over the loader in each pass that ends when",
    ),
    "a pass left out": (PASS + "    continue\n", "found pass 0 left before it was over"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_loop_whose_end_is_not_the_runs_is_refused(name: str, tmp_path: Path) -> None:
    rest, sentence = REFUSED[name]
    with pytest.raises(InputError, match=sentence):
        agileml.run(values(script(tmp_path, rest=rest)), sequential=True, out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


PREFETCHER = """
class Prefetcher:
    def __iter__(self):
        self.batches = iter(loader)
        return self
    def __next__(self):
        return next(self.batches)
"""
AFTER = """
for _ in (1, 2):
    try:
        raise KeyError
    except KeyError:
        continue
"""
ALLOWED = {
    "one line": FIT + "for batch in loader: fit(batch)\n",
    "a function": EPOCH + "epoch()\n",
    "counted": FIT + "for number, batch in enumerate(\n    loader\n):\n    fit(batch)\n",
    "fetched": FIT + PREFETCHER + "for batch in Prefetcher(): fit(batch)\n",
    "after another": AFTER + loop(),
    "in passes": FIT + PASS + "    list(map(fit, loader))\n",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_loop_may_stand_anywhere_else(name: str, tmp_path: Path) -> None:
    path = script(tmp_path, prepare=PREPARE.replace("64", "320"), rest=ALLOWED[name])
    result = agileml.run(values(path, clocks=3), sequential=True, out=str(tmp_path / "out"))
    assert result.summary["clocks"] == 3


def test_a_loop_is_not_inside_itself() -> None:
    class Items:
        def __iter__(self) -> Items:
            return self

        def __next__(self) -> str | None:
            return loop_around()

    for found in Items():
        assert found is None
        assert loop_around() is not None
        break
    else:
        raise AssertionError
    while True:
        assert next(Items()) is not None
        break
    assert loop_around() is None
