"""`proteus prices` as people run it: tables, made histories, eviction tables, and one sentence for bad input."""

import json
from pathlib import Path

import pytest

from bidbrain.history.archive import rows_of, write_rows
from bidbrain.report.markets import drawn, drawn_of
from tests.bidbrain.cli.test_commands import proteus
from tests.bidbrain.makers import history_of


def test_prices_show_generate_evictions(capsys, tmp_path: Path) -> None:
    made, plot, table = tmp_path / "m.csv.zst", tmp_path / "m.png", tmp_path / "e.csv"
    window = ["--window", "2016-03-01/2016-03-08"]
    code, text, _ = proteus(
        capsys, "prices", "generate", made, "--types", "c4.xlarge", "--zones", "z1,z2", *window
    )
    assert code == 0
    assert "made" in text
    code, text, _ = proteus(capsys, "prices", "show", made, "--out", plot)
    assert code == 0
    assert "c4.xlarge@z1" in text
    assert plot.stat().st_size > 10_000
    assert proteus(capsys, "prices", "evictions", made, "--out", table)[0] == 0
    assert len(table.read_text().splitlines()) == 1 + 2 * 19
    again = tmp_path / "again.csv.zst"
    proteus(capsys, "prices", "generate", again, "--types", "c4.xlarge", "--zones", "z1,z2", *window)
    assert again.read_bytes() == made.read_bytes()


def test_of_a_whole_region_not_every_market_is_drawn() -> None:
    """The image of some thousand panels would fill the memory, and take longer than all jobs."""
    few, many = (
        history_of({f"c{n}.xlarge@us-east-1a": [(0, 9), (9, 8)] for n in range(100, 100 + count)}, 9)
        for count in (48, 49)
    )
    assert drawn(few) == few.markets and drawn_of(few) == ""
    assert drawn(many) == many.markets[:48] and drawn_of(many) == "the first 48 of 49 markets"


def test_prices_show_plain_linux_where_there_are_several_products(capsys, tmp_path: Path) -> None:
    """As AWS lists them where nobody asks for one: the shortest name is Windows."""
    mixed, table = tmp_path / "mixed.csv", tmp_path / "e.csv"
    prices = {"Linux/UNIX": 50_000, "Windows": 300_000}
    days = [1_451_606_400 + 86_400 * day for day in range(5)]
    write_rows(mixed, [(at_s, "c4.xlarge", "z", name, prices[name]) for at_s in days for name in prices])

    def shown(*options: str) -> dict[str, object]:
        code, text, error = proteus(capsys, "prices", "show", mixed, "--json", *options)
        assert code == 0 and "prices of other products are left out" in error
        return json.loads(text)

    assert shown()["market"] == "c4.xlarge@z" and shown()["mean_usd_per_h"] == 0.05
    windows = shown("--product", "Windows")
    assert windows["mean_usd_per_h"] == 0.3 and windows["on_demand_usd_per_h"] is None, "that of Linux"
    assert shown("--product", "Win", "--on-demand", "c4.xlarge=0.4")["share_below_on_demand"] == 1.0
    code, text, _ = proteus(capsys, "prices", "evictions", mixed, "--out", table)
    assert code == 0 and "left out: Windows" in text
    assert {line.split(",")[0] for line in table.read_text().splitlines()[1:]} == {"c4.xlarge@z"}


def test_prices_show_says_whose_on_demand_prices_those_are(capsys, tmp_path: Path) -> None:
    path = tmp_path / "eu.csv"
    days = [1_451_606_400 + 86_400 * day for day in range(3)]
    write_rows(path, [(at_s, "c4.xlarge", "eu-central-1a", "Linux/UNIX", 50_000) for at_s in days])
    text = proteus(capsys, "prices", "show", path, "--on-demand", "c4.xlrage=0.2")[1]
    assert "1 market, 2016-01-01" in text
    assert "note: on-demand prices are those of us-east-1, also for eu-central-1" in text
    assert "note: --on-demand: nothing comes of c4.xlrage" in text
    assert "note:" not in proteus(capsys, "prices", "show", path, "--on-demand", "c4.xlarge=0.227")[1]


def test_a_market_without_a_price_in_the_window_has_no_figures(capsys, tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    rows = [(1_451_606_400 + 86_400 * day, f"{kind}.xlarge", "z", "Linux/UNIX", 50_000 + day)
            for kind, first in (("c4", 0), ("m4", 9)) for day in range(first, 19)]  # fmt: skip
    write_rows(path, rows)
    command = ("prices", "show", path, "--window", "2016-01-02/2016-01-05")
    line = proteus(capsys, *command, "--json")[1].splitlines()[1]
    late = json.loads(line, parse_constant=lambda found: pytest.fail(f"{found} is no JSON"))
    assert late["market"] == "m4.xlarge@z"
    assert {late[key] for key in late if key not in ("market", "on_demand_usd_per_h")} == {None}
    (row,) = (each for each in proteus(capsys, *command)[1].splitlines() if "m4.xlarge@z" in each)
    assert "0.0000" not in row and "nan" not in row


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate", "a.txt"], "ends in .csv"),
        (["generate", "a.csv", "--character", "wild"], "there are calm, turbulent, smooth"),
        (
            ["generate", "a.csv", "--types", "q7.huge"],
            "no on-demand price is known for the machine type 'q7.huge'",
        ),
        (["generate", "a.csv", "--window", "x"], "is not an interval"),
        (["generate", "a.csv", "--zones", ","], "--zones: found no name, expected at least one"),
        (
            ["generate", "a.csv", "--on-demand", "c4.xlarge=inf"],
            "--on-demand c4.xlarge: the price inf is not a",
        ),
        (
            ["generate", "a.csv", "--on-demand", "c4.xlarge=0"],
            "--on-demand c4.xlarge: the price 0 is not positive",
        ),
        (["generate", "none/a.csv"], "none/a.csv: cannot be written (there is no folder none)"),
        (["show", "none.csv", "--out", "plot.foo"], "plot.foo: the name of a plot ends in .png"),
        (["show", "none.csv", "--out", "none/plot.png"], "there is no folder none"),
        (["generate", "folder.csv"], "folder.csv is a folder, expected the name of a file"),
        (["show", "none.csv"], "no such file"),
        (["fetch", "a.txt"], "ends in .csv"),
    ],
)
def test_bad_prices_commands(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    code, _, error = proteus(capsys, "prices", *arguments)
    assert code == 2
    assert sentence in error


def test_files_that_cannot_be_written_are_one_sentence(capsys, turbulent, tmp_path: Path) -> None:
    history = tmp_path / "made.csv"
    write_rows(history, rows_of(turbulent))
    (tmp_path / "t.csv.partial").mkdir()
    for command, wanted in (
        (["show", "--out", "none/p.png"], 2),  # there is no such folder: nothing is begun
        (["evictions", "--out", tmp_path / "t.csv"], 1),
    ):
        code, _, error = proteus(capsys, "prices", command[0], history, *command[1:])
        assert (code, error.count("\n")) == (wanted, 1)
        assert f"{command[2]}: cannot be written (" in error
