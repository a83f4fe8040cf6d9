"""Rules of the protocol, broken one at a time: each must be caught by the model.

`python -m tests.model.mutants [NAME ...]` copies the source into a temporary folder, breaks one rule there and runs
schedules in the mode where the rule matters until one fails. The table says which seed it was.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = 5000


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs once in `file`, becomes `new`. `safe` says why no run can tell, where none can.

    orderly: it costs time only, and shows where nobody repeats anything.
    """

    name: str
    file: str
    old: str
    new: str
    mode: str
    why: str
    safe: str = ""
    orderly: bool = False


NODE, SERVER, SHARD = "agileml/core/node/node.py", "agileml/core/node/server.py", "agileml/core/node/shard.py"
CUTS = "agileml/core/node/dirty_rows.py"
WORKER, BACKUP = "agileml/core/node/worker.py", "agileml/core/node/backup.py"
CHANGE, CHANGING, CONTROLLER = (
    "agileml/core/change/planning.py",
    "agileml/core/controller/changes.py",
    "agileml/core/controller/controller.py",
)
MEMBERSHIP, CUTTING = "agileml/core/change/membership.py", "agileml/core/cuts/rule.py"
REDUCER, REPLICAS = "agileml/core/node/reducer.py", "agileml/core/change/replicas.py"
PAUSING = "agileml/core/controller/allreduce_pause.py"
LEAVING, CHANGE_RUN = "agileml/core/controller/notices.py", "agileml/core/change/run.py"
PIGGYBACK = "agileml/core/node/piggyback.py"
CONSISTENCY, COVERAGE = "straggler/consistency.py", "straggler/coverage.py"

MUTANTS = (
    # -- fences
    Mutant(
        "server obeys any epoch",
        NODE,
        "case Push() if message.epoch == self.promised:",
        "case Push():",
        "bsp",
        "a frozen shard counts what its copy does not have",
    ),
    Mutant(
        "owner not frozen by its promise",
        NODE,
        "case Push() if message.epoch == self.promised:",
        "case Push() if message.epoch == (self.view.epoch if self.view else 0):",
        "bsp",
        "between promise and view it goes on counting",
    ),
    Mutant(
        "worker obeys acks of any epoch",
        NODE,
        "case Ack() if not self.is_frozen and message.epoch == self.promised:",
        "case Ack():",
        "bsp",
        "after a rollback an old acknowledgement stands for work that is gone",
    ),
    Mutant(
        "worker obeys parameters of any epoch",
        NODE,
        "case Params() if not self.is_frozen and message.epoch == self.promised:",
        "case Params():",
        "bsp",
        "a later version of another timeline stands for an acknowledgement",
    ),
    Mutant(
        "backup obeys any epoch",
        NODE,
        "case Part() if message.epoch == self.promised:",
        "case Part():",
        "ssp",
        "a part of another timeline gets into a cut",
        safe="parts are named by clock and epoch, and a view drops those of other epochs: two more fences",
    ),
    Mutant(
        "old views are obeyed",
        NODE,
        "case Announce() if message.view.epoch >= self.promised:",
        "case Announce():",
        "bsp",
        "a late view takes a promise back",
    ),
    Mutant(
        "old fetches are obeyed",
        NODE,
        "case Prepare() if message.epoch >= self.promised:",
        "case Prepare():",
        "bsp",
        "a late PREPARE is answered as if it were new",
        safe="_prepare itself changes nothing for an older epoch and answers with the newer promise",
    ),
    # -- clocks
    Mutant(
        "a clock counts as complete early",
        SHARD,
        "(done := self.pending.get(self.version)) and done.counted == self.job.all_units",
        "(done := self.pending.get(self.version)) and done.counted.bit_count() >= self.job.units - 1",
        "sum",
        "a unit is missing",
    ),
    Mutant(
        "no version before the newest",
        CONSISTENCY,
        "return Read.PREVIOUS if clock == version - 1 and has_previous else Read.BEHIND",
        "return Read.BEHIND",
        "bsp",
        "redone work cannot read what its first run read",
    ),
    Mutant(
        "redone work reads the newest version",
        CONSISTENCY,
        "return Read.PREVIOUS if clock == version - 1 and has_previous else Read.BEHIND",
        "return Read.CURRENT",
        "bsp",
        "redone work reads a mixture of versions",
    ),
    Mutant(
        "the version before does not move",
        SHARD,
        "return ShardCopy(cut, self.previous, pending, only, changed)",
        "return ShardCopy(cut, None, pending, only, changed)",
        "bsp",
        "a new owner cannot serve redone work",
    ),
    Mutant(
        "nobody is told that he is behind",
        SERVER,
        "self._send(worker, Behind(message.epoch, message.partition, message.clock))",
        "pass",
        "bsp",
        "a worker waits for a clock that ended without it",
        safe="without helpers a clock cannot end without a worker that it is dealt to; test_server has the rule",
    ),
    Mutant(
        "sums in the order of arrival",
        SHARD,
        "self.pending[clock] = Fold(self.job.deterministic)",
        "self.pending[clock] = Fold(False)",
        "bsp",
        "floats do not add associatively",
    ),
    Mutant(
        "momentum is overwritten under a cut",
        SHARD,
        "self._owns_state = False\n        if rows is None",
        "if rows is None",
        "bsp",
        "a rollback to the own copy has a momentum of later",
    ),
    Mutant(
        "contributions survive a rollback",
        WORKER,
        "if self._view is None or view.timeline != self._view.timeline:",
        "if self._view is None:",
        "bsp",
        "what was acknowledged in another timeline is never sent again",
    ),
    Mutant(
        "SSP reads one clock too old",
        CONSISTENCY,
        "if clock - self.slack > version:",
        "if clock - self.slack - 1 > version:",
        "ssp",
        "staleness is not bounded by the slack",
    ),
    Mutant(
        "ASP counts twice",
        SHARD,
        "verdict = judge(union(self.counted.get(clock, ())), bundle)",
        "verdict = Verdict.COUNT",
        "asp",
        "a message that comes twice is applied twice",
    ),
    Mutant(
        "duplicates count",
        COVERAGE,
        "return Verdict.DUPLICATE",
        "return Verdict.COUNT",
        "sum",
        "a message that comes twice counts twice",
    ),
    # -- changes
    Mutant(
        "staged copies are authoritative",
        SERVER,
        "p: {message.tag: copies[message.tag]}",
        "p: {message.tag: copies[max(copies)]}",
        "bsp",
        "a copy of a view that was never written has counted what nobody else has",
    ),
    Mutant(
        "tag of the last attempt",
        CHANGING,
        "tag = control.view.epoch if control.view else 0",
        "tag = running.epoch - 1",
        "bsp",
        "copies of the durable view are dropped",
    ),
    Mutant(
        "not everybody has promised",
        CHANGING,
        "            if not running.unpromised(alive):",
        "            if len(running.unpromised(alive)) < 2:",
        "bsp",
        "an owner that goes on counting, or a rollback that was not needed",
    ),
    Mutant(
        "view announced before it is durable",
        CHANGING,
        "control.persist(replace(control.record, view=change.view, committed=change.committed))",
        "control.persist(replace(control.record, view=change.view, committed=change.committed)); "
        "from agileml.core.protocol.messages import Announce; "
        "[control.send(m.name, Announce(change.view, control.limit)) for m in control.members.alive()]",
        "bsp",
        "nodes drop what the durable view says they hold",
    ),
    Mutant(
        "no compare-and-set",
        CONTROLLER,
        'control.halt(HaltKind.REPLACED, f"another controller wrote record {event.number}")',
        "self._persisted(event.number)",
        "bsp",
        "two controllers act at once",
    ),
    Mutant(
        "base is the newest version",
        CHANGE,
        "base = min(state.version for state in states.values())",
        "base = max(state.version for state in states.values())",
        "bsp",
        "a partition that is behind never gets what it lacks",
    ),
    Mutant(
        "pending contributions do not move",
        SHARD,
        "pending = tuple((clock, self.pending[clock].copied()) for clock in sorted(self.pending))",
        "pending = ()",
        "bsp",
        "acknowledged work is lost",
    ),
    Mutant(
        "boundaries are not kept",
        CHANGE,
        "waiting_here = sorted({b for _, waiting in pending for b in waiting.get(clock, ())})",
        "waiting_here = []",
        "sum",
        "bundles overlap in part",
    ),
    Mutant(
        "pending work is dealt to nobody",
        CHANGE,
        "if bundle & lacking:",
        "if bundle & lacking and bundle in had_by:",
        "bsp",
        "a dead worker's half-delivered bundle is never finished",
    ),
    Mutant(
        "survivors are not rolled back",
        CHANGE,
        "kind, node, states[partition] = holders[partition][0]",
        "kind, node, states[partition] = (SourceKind.SHARD, view.owner[partition], frozen[partition]) "
        "if partition in frozen else holders[partition][0]",
        "bsp",
        "partitions of two times in one model",
    ),
    Mutant(
        "a rollback keeps the timeline",
        CHANGE,
        "timeline=epoch if view is None or rolled_back else view.timeline",
        "timeline=epoch if view is None else view.timeline",
        "bsp",
        "workers keep contributions of what is undone",
    ),
    Mutant(
        "machines under notice get work",
        MEMBERSHIP,
        "return member.is_alive and member.admitted and member.deadline_s is None",
        "return member.is_alive and member.admitted",
        "bsp",
        "the notice is wasted: a rollback that was not needed",
    ),
    Mutant(
        "machines under notice leave at once",
        CONTROLLER,
        "if member.deadline_s is not None and member.name not in view.member_set:",
        "if member.deadline_s is not None:",
        "bsp",
        "what they hold goes with them",
    ),
    Mutant(
        "a change counts on a source that is dead",
        CHANGE_RUN,
        "sources = {fetch.source.node for _, fetch in self.outstanding()} - {NOBODY}",
        "sources: set[str] = set()",
        "bsp",
        "what it has not given yet is waited for, for ever",
    ),
    # -- notices that may be too short
    Mutant(
        "a notice is never long enough",
        LEAVING,
        "member.name: member.deadline_s - control.now_s",
        "member.name: 0.0",
        "bsp",
        "clocks are done again though there was time to move everything",
    ),
    Mutant(
        "a short notice gives the committed cut up",
        LEAVING,
        "if not back.rolled_back or (committed.clock and back.committed != committed):",
        "if not back.rolled_back:",
        "bsp",
        "everyone goes back to a checkpoint, or to the start, though the leaver lives",
    ),
    # -- cuts
    Mutant(
        "momentum is not in the cut",
        SHARD,
        "self._own(slot) for slot in cut.state",
        "tuple(np.zeros_like(array) for array in slot) for slot in cut.state",
        "bsp",
        "the optimizer starts over after a rollback or a move",
    ),
    Mutant(
        "cuts share rows that change",
        SHARD,
        "block.copy() if table.sparse else block",
        "block",
        "bsp",
        "sparse tables change in place, and the cut with them",
    ),
    Mutant(
        "what changed is forgotten when a cut is aborted",
        SHARD,
        "log.absorb(later)",
        "pass",
        "bsp",
        "the next cut lacks rows that changed before the aborted one; the own copy has values of later",
    ),
    Mutant(
        "values of later writes are put aside",
        CUTS,
        "is_first = ~self._is_changed[rows]",
        "is_first = np.ones(len(rows), bool)",
        "bsp",
        "the own copy of a cut has values of later",
    ),
    Mutant(
        "a moved shard takes itself for the committed cut",
        SHARD,
        "log.mark(rows if rows is not None else slice(None))",
        "pass",
        "bsp",
        "the next cut lacks rows that changed before the move",
    ),
    Mutant(
        "rows are added to any cut",
        BACKUP,
        "message.only is not None and message.only.base != self.name(message.partition)",
        "False",
        "bsp",
        "a cut of rows of two times",
    ),
    Mutant(
        "a cut that others were given is written to",
        BACKUP,
        "self._owned.get(partition, ())",
        "range(99)",
        "bsp",
        "a checkpoint, or a shard that goes back, has rows of later",
    ),
    Mutant(
        "a part commits as it arrives",
        BACKUP,
        "self._arriving[message.partition] = arriving\n",
        "self._merge(message.partition, arriving)\n",
        "bsp",
        "the committed cut is destroyed before the next one is whole",
    ),
    Mutant(
        "a cut commits with a part missing",
        CUTTING,
        "len(self._stored) == self._partitions",
        "len(self._stored) >= max(1, self._partitions - 1)",
        "bsp",
        "a rollback has nothing to go back to",
    ),
    Mutant(
        "a late view drops parts of its own epoch",
        BACKUP,
        "if part.name.epoch == view.epoch",
        "if part.name.epoch > view.epoch",
        "bsp",
        "a part that was acknowledged is gone, and the cut never whole",
    ),
    Mutant(
        "a missed view loses the staged backup",
        BACKUP,
        "        self._unstage(tag)\n",
        "        self._staged.clear()\n",
        "bsp",
        "the only copy of the committed cut is dropped",
    ),
    Mutant(
        "ASP cuts without their coverage",
        SHARD,
        "counted = tuple((clock, tuple(sorted(self.counted[clock]))) for clock in sorted(self.counted))",
        "counted = ()",
        "asp",
        "after a rollback or a move units are applied twice",
    ),
    Mutant(
        "a whole cut is named anew",
        CUTTING,
        "return clock == self.next and not self.is_whole",
        "return clock == self.next",
        "asp",
        "its parts are replaced while it is being committed",
        safe="servers keep what is named until something later is, so none misses it; test_controller has the rule",
    ),
    # -- sums by all-reduce
    Mutant(
        "what was with a group is used again",
        REDUCER,
        "            self._worker.forget(self._clock, bundle)\n",
        "            pass\n",
        "allreduce",
        "sums are made in place: the array has whatever the group left in it",
    ),
    Mutant(
        "the oldest replica counts",
        REPLICAS,
        "(known and known[0].version > state.version)",
        "(known and known[0].version < state.version)",
        "allreduce",
        "partitions of two clocks, or work that is done and applied twice",
    ),
    Mutant(
        "a replica that is behind stays so",
        REPLICAS,
        "if source.kind is SourceKind.SHARD and node in has else source",
        "if source.kind is SourceKind.SHARD and has else source",
        "allreduce",
        "replicas begin a view at different versions",
    ),
    Mutant(
        "replicas older than the committed cut count",
        REPLICAS,
        "state.version < committed.clock or ",
        "",
        "allreduce",
        "the committed cut is ahead of what is trained on",
    ),
    Mutant(
        "lost backups are not made again",
        CHANGE,
        "return replace(start, committed=CutId(version, epoch), reason=reason, is_cut=True)",
        "return start",
        "allreduce",
        "the last cut is committed, and a part of it is nowhere",
    ),
    Mutant(
        "a change does not wait for a clock's end",
        PAUSING,
        "if trigger is None or self._is_urgent(view) or self._has_stopped(view):",
        "if True:",
        "allreduce",
        "a notice or a join costs sums that were under way",
    ),
    Mutant(
        "a pause that nobody hears of again",
        PAUSING,
        "trigger = trigger or self._asked[1]",
        "pass",
        "allreduce",
        "a notice that is taken back leaves everybody paused",
    ),
    Mutant(
        "a pause takes effect at once",
        REDUCER,
        "        self._wants_pause = True\n",
        "        self._wants_pause = self.is_paused = True\n",
        "allreduce",
        "some stop before a clock that others have begun",
    ),
    Mutant(
        "a broken group is said once",
        REDUCER,
        "        if self._view is not None and self._failure is not None:\n",
        "        if False:\n",
        "allreduce",
        "the message is lost, and everybody waits for a sum that never comes",
    ),
    Mutant(
        "machines introduce themselves once",
        REDUCER,
        "        if self._view is not None and not self._has_summed:\n",
        "        if False:\n",
        "allreduce",
        "the message is lost, and the group never meets",
    ),
    Mutant(
        "sums of an old group count",
        REDUCER,
        "        if not self._is_current(event.epoch):\n            return\n        assert",
        "        assert",
        "allreduce",
        "a sum that lacks a bundle, or has one twice",
    ),
    # -- nobody waits for a repeat
    Mutant(
        "a view forgets who asked before it came",
        SERVER,
        "                if pull.epoch == view.epoch:",
        "                if pull.epoch == -1:",
        "bsp",
        "a worker that had the view first waits until it asks again",
        orderly=True,
    ),
    Mutant(
        "who appears in a change is not asked",
        CHANGE_RUN,
        "if node not in self._asked]",
        "if not self._asked]",
        "bsp",
        "a change waits for a promise that nobody asked for",
        orderly=True,
    ),
    Mutant(
        "a save is asked of the old backups alone",
        CHANGING,
        "        self._cuts.send_save()  # other machines may have the parts now\n",
        "",
        "bsp",
        "a checkpoint, and the end of the run, wait for parts that nobody was asked for",
        orderly=True,
    ),
    # -- one message where two would do
    Mutant(
        "a push that asks for more gets nothing",
        SERVER,
        "            self.pull(worker, Pull(message.epoch, message.partition, message.clock + 1, rows))\n",
        "",
        "dense",
        "the worker waits until it repeats its question",
        orderly=True,
    ),
    Mutant(
        "the question rides on any push",
        PIGGYBACK,
        "message.partition, message.clock - 1))",
        "0, message.clock - 1))",
        "dense",
        "other partitions are not asked for what the worker waits for",
        orderly=True,
    ),
    Mutant(
        "every answer acknowledges all",
        PIGGYBACK,
        "if ack.clock >= min(clock, version)",
        "if False",
        "dense",
        "parameters for work that is done again say nothing of the clock that was pushed",
        safe="the parameters of the next clock come in the end; without them the push is repeated",
        orderly=True,
    ),
    Mutant(
        "what is owed is never sent",
        PIGGYBACK,
        "if owed[0][0] <= now_s:",
        "if False:",
        "dense",
        "who is told nothing pushes again",
        safe="a clock that takes long is pushed again and again; what is known already is not counted twice",
        orderly=True,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """`seed` is the first that failed (None: none of them did)."""

    mutant: Mutant
    seed: int | None
    how: str
    seconds: float


def try_mutant(mutant: Mutant, seeds: int = SEEDS) -> Verdict:
    """Break one rule in a copy of the source and run schedules until one fails."""
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy_broken(mutant, Path(folder))
        command = [sys.executable, "-m", "tests.model.run", "--first", "--mode", mutant.mode]
        command += ["--orderly"] if mutant.orderly else []
        done = subprocess.run(
            [*command, "--seeds", f"0:{seeds}"], cwd=folder, capture_output=True, text=True, check=False
        )
    seconds = time.perf_counter() - started_s
    found = re.search(r"^  seed (\d+): (.*)", done.stdout, re.MULTILINE)
    if found is None:
        assert done.returncode == 0, done.stderr
        return Verdict(mutant, None, "", seconds)
    return Verdict(mutant, int(found[1]), found[2], seconds)


def copy_broken(mutant: Mutant, folder: Path) -> None:
    """The source with one rule broken. Compiled kernels come along, so that nothing is compiled anew."""
    for part in ("agileml", "straggler", "tests/model"):
        shutil.copytree(ROOT / part, folder / part)
    path = folder / mutant.file
    path.write_text(broken(mutant))


def broken(mutant: Mutant) -> str:
    """The text of the file with the rule broken."""
    text = (ROOT / mutant.file).read_text()
    count = text.count(mutant.old)
    assert count == 1, f"{mutant.name}: {mutant.old!r} occurs {count} times in {mutant.file}, expected once"
    return text.replace(mutant.old, mutant.new)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of names; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if not arguments.names or any(name in m.name for name in arguments.names)]
    escaped = []
    print(f"{'mutant':42} {'mode':4}  {'caught':>11}  how")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(lambda mutant: try_mutant(mutant, arguments.seeds), chosen):
            mutant = verdict.mutant
            caught = "no" if verdict.seed is None else f"by seed {verdict.seed}"
            how = verdict.how if verdict.seed is not None else mutant.safe or "ESCAPED: " + mutant.why
            print(f"{mutant.name:42} {mutant.mode:4}  {caught:>11}  {how[:100]}", flush=True)
            if verdict.seed is None and not mutant.safe:
                escaped.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(escaped)} escaped")
    if escaped:
        raise SystemExit(f"not caught within {arguments.seeds} seeds: {', '.join(escaped)}")


if __name__ == "__main__":
    main()
