"""A job's journal as sentences: every purchase and every end is there, under the decision that made it."""

from pathlib import Path

from typer.testing import CliRunner

from agileml.cli import app
from bidbrain.accounts.ledger import EntryKind
from bidbrain.billing import Ending
from bidbrain.live.cloud import Alert, InstanceNotice
from bidbrain.live.explain import explain
from bidbrain.live.journal import Journal, Noticed, read_journal
from bidbrain.policy.base import Decision, GiveBack, LetGo, MarketView, Request
from bidbrain.policy.registry import find_scheme
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, SMALL, LoneJob
from tests.bidbrain.live.makers import LiveRig, play_in
from tests.bidbrain.makers import made_trace
from tests.bidbrain.policy.test_today import setting_of


def test_all_that_happened_is_told_with_its_reason(tmp_path: Path) -> None:
    scheme = find_scheme("expected_cost")
    setting = scheme.setting(setting_of([made_trace(z, 16, 80.0, 1.5, 1.0, seed=7) for z in ("a", "b")]))
    closing, ledger = play_in(tmp_path / "market", LiveRig(setting, 4 * 3600), scheme)
    lines = list(map(str, explain(read_journal(tmp_path / "market" / "journal.jsonl"))))
    text = "\n".join(lines)
    kinds = [entry.kind for entry in ledger.entries]
    assert text.count("taken by the market") == kinds.count(EntryKind.EVICTION)
    assert text.count(": given back") == kinds.count(EntryKind.TERMINATION) + kinds.count(EntryKind.JOB_END)
    assert sum(int(line.split(" got ")[1].split()[0]) for line in lines if " got " in line) == kinds.count(
        EntryKind.GRANT
    )
    for entry in ledger.entries:
        if entry.kind is EntryKind.EVICTION:
            assert f"{entry.market}, allocation {entry.allocation}: taken by the market" in text
        if entry.kind is EntryKind.REQUEST:
            assert entry.reason is not None
            assert entry.reason in text
    assert lines[-1 - kinds.count(EntryKind.JOB_END)].endswith(f"the end: {closing.reason}")
    done = CliRunner().invoke(app, ["market", "explain", str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.splitlines() == lines


def test_a_notice_is_told_and_a_folder_without_a_journal_is_one_sentence(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(Noticed(60, (InstanceNotice("n", "i-1", Alert.REBALANCE, 180),)))
    (line,) = map(str, explain(read_journal(tmp_path / "journal.jsonl")))
    assert line == "1970-01-01T00:01:00Z    notice: i-1, rebalance"
    done = CliRunner().invoke(app, ["market", "explain", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "no journal there" in " ".join(done.output.replace("│", " ").split())


def test_an_order_that_was_filled_in_part_names_the_allocations_that_there_are() -> None:
    def three(now_s: int, view: MarketView) -> Decision:
        return Decision((Request(SMALL, 1, ON_DEMAND, 3),) if not view.holdings else (), "three", now_s + 300)

    job = LoneJob(three)
    job.cloud.most[SMALL.zone] = 2
    job.after(0)
    assert [a.number for a in job.service.state.account.held()] == [0, 1]
    (got,) = (str(line) for line in explain(job.log.records) if f" got 2 of {SMALL}" in str(line))
    assert got.endswith("(allocations 0 to 1)")


def test_a_machine_that_ended_by_itself_was_not_given_back() -> None:
    """As one whose boot failed, or that somebody ended in the console: no decision was behind it."""
    numbers = {1: GiveBack(0), 2: LetGo(1)}

    def decides(now_s: int, view: MarketView) -> Decision:
        number = (now_s - BEGIN_S) // 300
        bought = (Request(SMALL, 1, ON_DEMAND, 3),) if not number else ()
        return Decision((*bought, *([numbers[number]] if number in numbers else ())), "so", now_s + 300)

    job = LoneJob(decides)
    job.after(0)
    (third,) = (each.instance_id for each in job.service.state.instances[2])
    job.after(300, times=3)
    job.cloud.end(third, Ending.TERMINATED)
    job.after(300, times=10)
    told = [str(line).partition("allocation ")[2] for line in explain(job.log.records) if ": " in str(line)]
    ends = dict(each.split(": ", 1) for each in told if ": " in each)
    assert (ends["0"], ends["1"]) == ("given back", "given back")
    assert ends["2"] == "ended by itself or by hand, neither given back nor taken by the market"
