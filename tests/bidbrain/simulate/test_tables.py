"""Simulations from Python, and the policy of the guide on pools, on prices and live."""

import json
import re
import sys
from pathlib import Path

import pandas
import pytest

from bidbrain.config import ConfigError
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.history.prices import History
from bidbrain.instants import parse_instant
from bidbrain.policy.answer import PolicyError
from bidbrain.policy.registry import UnknownSchemeError, find_scheme
from bidbrain.policy.standard import OnDemand
from bidbrain.setting import Workload
from bidbrain.simulate.tables import run
from tests.bidbrain.live.makers import LiveRig, Memory, play
from tests.bidbrain.makers import EVALUATE, history_of, made_trace, make_setting

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def careful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The guide's policy, as a user's file."""
    page = (ROOT / "docs" / "guides" / "simulate-bidding.md").read_text()
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Careful" in block
    )
    (tmp_path / "of_a_user.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "of_a_user", raising=False)
    for name in "ab":
        counts = made_trace(name, 16, 100.0, 3.0, 1.0, seed=3).counts.tolist()
        (tmp_path / f"{name}.json").write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": counts}))
    return "of_a_user:Careful"


def test_tables_are_what_pandas_takes_and_a_class_is_a_scheme(careful: str) -> None:
    own = find_scheme(careful)
    import of_a_user  # type: ignore[import-not-found]

    tables = run(
        availability=["a.json", "b.json"], schemes=["elastic", of_a_user.Careful], job_hours=[1], starts=6
    )
    frame = pandas.DataFrame(tables.rows).set_index("scheme")
    assert list(frame.index) == ["elastic", careful]
    assert (frame["unfinished"] == 0).all()
    assert frame.loc[careful, "cost"] == pytest.approx(frame.loc["elastic", "cost"], rel=0.3)
    assert len(pandas.DataFrame(tables.pairs)) == 1
    assert own.elastic


def test_the_guides_policy_runs_live_on_prices(careful: str, turbulent: History) -> None:
    scheme = find_scheme(careful)
    setting = make_setting(turbulent, Workload(vcpus=32, hours=1.0), rules="per_second")
    closing, _ = play(LiveRig(setting, EVALUATE.start_s), scheme, Memory())
    assert closing.finished


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("class Careful(:\n", r"cannot be loaded: .*broken\.py line 1: invalid syntax"),
        ("raise KeyError('x')\n", "cannot be loaded: KeyError: 'x'"),
        ("import not_there_at_all\n", "cannot be loaded: No module named"),
        ("class Careful: ...\n", "has no class Careful with a method decide"),
    ],
)
def test_a_file_with_a_mistake_is_one_sentence(
    careful: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, sentence: str
) -> None:
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(UnknownSchemeError, match=sentence):
        run(availability="a.json", schemes=["broken:Careful"], job_hours=[1], starts=1)


def test_a_constructor_or_a_decision_that_is_none_is_one_sentence(
    careful: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    (tmp_path / "odd.py").write_text(
        "class Bare:\n    def decide(self, now_s, view): ...\n"
        "class Mute:\n    def __init__(self, setting, start_s): ...\n    def decide(self, now_s, view): ...\n"
    )
    with pytest.raises(UnknownSchemeError, match=r"cannot be made by Bare\(setting, start_s\): TypeError"):
        run(availability="a.json", schemes=["odd:Bare"], job_hours=[1], starts=1)
    with pytest.raises(PolicyError, match="returned NoneType, expected a Decision"):
        run(availability="a.json", schemes=["odd:Mute"], job_hours=[1], starts=1)
    with pytest.raises(ConfigError, match="found no market or two"):
        run(schemes=["elastic"])
    with pytest.raises(ConfigError, match="processes: found 0, expected at least 1"):
        run(0, made="smooth")


def test_made_prices_a_path_and_one_scheme_are_taken_as_they_are(tmp_path: Path) -> None:
    """As on the command line, which needs no recording either."""
    windows = {"train": "2016-03-01/2016-03-08", "evaluate": "2016-03-08/2016-03-12"}
    small: dict[str, object] = {**windows, "job_hours": [1], "starts": 2}
    tables = run(made="calm", types=["c4.xlarge"], schemes="on_demand", **small)
    assert [row["cost"] for row in tables.rows] == [1.0]
    assert tables.notes[0].startswith("the prices are made (calm, seed 0)")
    rows = [(parse_instant(f"2016-03-{day:02}"), 30_000 + day) for day in range(1, 13)]
    path = tmp_path / "prices.csv"
    write_rows(path, rows_of(history_of({"c4.xlarge@us-east-1a": rows}, rows[-1][0])))
    tables = run(history=path, schemes=OnDemand, **small)
    reliable = 3 * 4 / 512  # which a scheme of one's own holds beside
    assert [row["cost"] for row in tables.rows] == [1.0 + reliable] and not tables.notes
