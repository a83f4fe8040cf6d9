"""Figures of the papers: run once, kept, moved by the seed; verdicts follow from what the commands wrote."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.figures import flexrr, pipelines
from benchmarks.figures.catalogue import FIGURES, UNABLE, chosen
from benchmarks.figures.figure import Claim, Figure, Verdict, checked
from benchmarks.figures.redraw import CommandError, page, redraw

TINY = (
    "stragglers --workers 4 --pattern slow-worker:200 --schemes bsp --iterations 4 --seeds 1 --seed {seed} "
    "--out {out}"
)


def judge(folder: Path) -> Sequence[Claim]:
    found = flexrr.Runs(folder).get("slow-worker:200", "bsp")
    return [checked("BSP over Ideal", "1.2", f"{found:.6f}", found > 1, "")]


@pytest.mark.slow
def test_a_figure_is_run_once_and_moves_with_the_seed(tmp_path: Path) -> None:
    figure = Figure("tiny", "a small one", (TINY,), judge, "figure.png")
    first = redraw(figure, tmp_path, tmp_path, 0)
    written = (tmp_path / "tiny" / "summary.json").stat().st_mtime_ns
    again = redraw(figure, tmp_path, tmp_path, 0)
    assert again == first
    assert (tmp_path / "tiny" / "summary.json").stat().st_mtime_ns == written
    other = redraw(figure, tmp_path, tmp_path, 1)
    assert other.claims[0].ours != first.claims[0].ours

    text = page([other], [("none", "nothing", "no reason")], tmp_path / "pictures", 1)
    assert "| BSP over Ideal | 1.2 | " in text
    assert "proteus stragglers --workers 4" in text
    assert "seed 1" in text
    assert (tmp_path / "pictures" / "tiny.png").stat().st_size > 1000


def test_a_recording_that_is_not_there_is_said_and_nothing_is_run(tmp_path: Path) -> None:
    figure = Figure("far", "of a recording", ("stragglers --out {out}",), judge, needs=("spot/none.csv",))
    (claim,) = redraw(figure, tmp_path / "out", tmp_path, 0).claims
    assert claim.verdict is Verdict.CANNOT
    assert "spot/none.csv" in claim.because
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_command_that_fails_is_named_and_run_again_next_time(tmp_path: Path) -> None:
    figure = Figure("wrong", "", ("stragglers --pattern nonsense --out {out}",), judge)
    with pytest.raises(CommandError, match=r"proteus stragglers --pattern nonsense .* ended with 2"):
        redraw(figure, tmp_path, tmp_path, 0)
    assert not (tmp_path / "wrong" / "done.json").exists()


def test_verdicts_follow_from_the_numbers(tmp_path: Path) -> None:
    reason = "4 GPUs give 3.14x at 79% efficiency, 3 give 2.54x"
    (tmp_path / "sizes.json").write_text(json.dumps({"gpus": {"answer": 4, "reason": reason}}))
    assert {claim.verdict for claim in pipelines.sizes(tmp_path)} == {Verdict.REPRODUCED}
    (tmp_path / "sizes.json").write_text(json.dumps({"gpus": {"answer": 5, "reason": reason}}))
    assert pipelines.sizes(tmp_path)[0].verdict is Verdict.DIFFERS

    begins = pipelines.DRAWN["5.4"]
    lines = [f"stage {n + 1} replica 1: {begin} B9" for n, begin in enumerate(begins)]
    (tmp_path / "schedule.txt").write_text("\n".join(lines))
    assert pipelines.drawn("5.4")(tmp_path)[0].verdict is Verdict.REPRODUCED
    (tmp_path / "schedule.txt").write_text("\n".join(lines).replace("F5 B2", "B2 F5"))
    assert pipelines.drawn("5.4")(tmp_path)[0].verdict is Verdict.DIFFERS


def test_names_are_unique_and_only_takes_their_beginnings() -> None:
    names = [figure.name for figure in FIGURES] + [one.name for one in UNABLE]
    assert len(set(names)) == len(names)
    assert [figure.name for figure in chosen("sizing,elastic")] == ["elasticbsp", "sizing"]
    assert chosen(None) == FIGURES
    assert chosen("nothing") == ()
