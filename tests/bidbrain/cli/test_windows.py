"""`proteus simulate` and the windows that it trains and evaluates in."""

from pathlib import Path

from bidbrain.history.archive import write_rows
from tests.bidbrain.cli.test_commands import proteus


def test_made_prices_need_their_windows(capsys, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("made: calm\ntypes: [c4.xlarge]\n")
    assert (
        "made: found it without types, train or evaluate"
        in proteus(capsys, "simulate", tmp_path / "c.yaml")[2]
    )


def test_a_window_in_a_hole_is_refused_and_a_small_cut_is_said(capsys, tmp_path: Path) -> None:
    days = [*range(1, 8), *range(17, 29)]
    rows = [
        (
            1456790400 + 86_400 * (day - 1) + 3600 * hour,
            "c4.xlarge",
            "us-east-1a",
            "Linux/UNIX",
            30_000 + hour,
        )
        for day in days
        for hour in range(24)
    ]
    path = tmp_path / "hole.csv"
    write_rows(path, rows)
    common = ["simulate", "--history", path, "--job-hours", "2", "--starts", "5", "--schemes", "proteus"]
    inside = ["--train", "2016-03-01/2016-03-06", "--evaluate", "2016-03-08/2016-03-16"]
    code, _, error = proteus(capsys, *common, "--out", tmp_path / "o", *inside)
    assert code == 2
    assert "mostly in a hole" in error
    cut = ["--train", "2016-03-01/2016-03-06", "--evaluate", "2016-03-15/2016-03-29T06:00Z"]
    code, text, _ = proteus(capsys, *common, "--out", tmp_path / "o", *cut)
    assert code == 0
    assert "note: evaluate is cut to the history" in text
    assert "note: the recording has a hole" in text
