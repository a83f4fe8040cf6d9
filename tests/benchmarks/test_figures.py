"""Figures of the papers: run once, kept, moved by the seed; verdicts follow from what the commands wrote."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import __main__ as command
from benchmarks.figures import flexrr, pipelines
from benchmarks.figures.catalogue import FIGURES, UNABLE, chosen
from benchmarks.figures.figure import Claim, Figure, Unable, Verdict, checked
from benchmarks.figures.page import OtherSeedError, kept, page, section
from benchmarks.figures.redraw import CommandError, Redrawn, redraw

TINY = (
    "proteus stragglers --workers 4 --pattern slow-worker:200 --schemes bsp --iterations 4 --seeds 1 --seed {seed} "
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

    text = section(other, tmp_path / "pictures", 1)
    assert "| BSP over Ideal | 1.2 | " in text
    assert "proteus stragglers --workers 4" in text
    assert "--seed 1" in text
    assert (tmp_path / "pictures" / "tiny.png").stat().st_size > 1000


def claims(folder: Path) -> Sequence[Claim]:
    return [
        checked("one", "1", (folder / "said.txt").read_text().strip(), True, ""),
        checked("two", "2", "3", False, "it is more"),
    ]


PRINTS = Figure("prints", "what python prints", ("python -c 'print(1)' > {out}/said.txt",), claims)


def test_a_command_may_be_of_python_and_print_into_a_file(tmp_path: Path) -> None:
    redrawn = redraw(PRINTS, tmp_path, tmp_path, 0)
    assert [claim.verdict for claim in redrawn.claims] == [Verdict.REPRODUCED, Verdict.DIFFERS]
    assert redrawn.claims[0].ours == "1"
    assert "    python -c 'print(1)' > runs/figures/prints/said.txt\n" in section(redrawn, tmp_path, 0)


def test_a_figure_that_this_computer_cannot_run_says_what_it_lacks(tmp_path: Path) -> None:
    figure = replace(PRINTS, lacks=lambda: "there is no root here")
    (claim,) = redraw(figure, tmp_path / "out", tmp_path, 0).claims
    assert (claim.verdict, claim.because) == (Verdict.CANNOT, "there is no root here")
    assert not (tmp_path / "out").exists()


def test_a_page_can_be_completed_by_single_figures(tmp_path: Path) -> None:
    made = tuple(Claim("that", "1", "2", verdict, "so") for verdict in (Verdict.DIFFERS, Verdict.CANNOT))
    texts = {
        name: section(Redrawn(replace(PRINTS, name=name), tmp_path, made), tmp_path, 3) for name in ("a", "c")
    }
    text = page(texts, ["a", "b", "c"], [Unable("d", "nothing", "no reason")], 3)
    assert "seed 3. 2 differs, 2 cannot." in text
    assert text.endswith("| d | nothing | no reason |\n")
    found = kept(text, 3)
    assert found == texts
    better = (Claim("that", "1", "1", Verdict.REPRODUCED),)
    found["b"] = section(Redrawn(replace(PRINTS, name="b"), tmp_path, better), tmp_path, 3)
    again = page(found, ["a", "b", "c"], [], 3)
    assert "1 reproduced, 2 differs, 2 cannot." in again
    assert again.index("## a:") < again.index("## b:") < again.index("## c:")
    with pytest.raises(OtherSeedError, match="another seed than 4"):
        kept(text, 4)


def test_a_recording_that_is_not_there_is_said_and_nothing_is_run(tmp_path: Path) -> None:
    figure = Figure(
        "far", "of a recording", ("proteus stragglers --out {out}",), judge, needs=("spot/none.csv",)
    )
    (claim,) = redraw(figure, tmp_path / "out", tmp_path, 0).claims
    assert claim.verdict is Verdict.CANNOT
    assert "spot/none.csv" in claim.because
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_command_that_fails_is_named_and_run_again_next_time(tmp_path: Path) -> None:
    figure = Figure("wrong", "", ("proteus stragglers --pattern nonsense --out {out}",), judge)
    with pytest.raises(CommandError, match=r"proteus stragglers --pattern nonsense .* ended with 2"):
        redraw(figure, tmp_path, tmp_path, 0)
    assert not (tmp_path / "wrong" / "ran.json").exists()


def test_a_figure_that_fails_is_said_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def holds(folder: Path) -> list[Claim]:
        return [checked("it", "yes", "yes", True, "")]

    figures = (
        Figure("broken", "", ("python -c 'exit(3)'",), holds),
        Figure("whole", "", ("python -c 'exit(0)'",), holds),
    )
    monkeypatch.setattr(command, "chosen", lambda only: figures)
    monkeypatch.setattr(command, "FIGURES", figures)
    target = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["figures", "--out", str(tmp_path / "out"), "--page", str(target)])
    assert command.main() == 1
    assert "python -c 'exit(3)' ended with 3" in capsys.readouterr().err
    assert "1 reproduced, 1 cannot" in target.read_text()
    assert "| cannot, because python -c 'exit(3)' ended with 3: |" in target.read_text()


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
