"""The journal of a job: one JSON line for each intention and each event, on disk before the service acts on it.

After a service dies, the next one continues from the journal. Lines are only added; each is synced before `append`
returns. A lock (flock) admits one service at a time; the kernel drops it when the process ends. The ledger is made from
the journal (`JobState.ledger`); nothing else is stored, and no secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from bidbrain.billing import Ending
from bidbrain.files.line_file import RecordFile, RecordFormat
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Instance, InstanceNotice

JOURNAL = "journal.jsonl"
MOST_PARTS = 1 << 20  # of an order: whoever reads one makes so many allocations


@dataclass(frozen=True)
class Buy:
    """Ask for `vcpus` of spot instances in `parts` allocations of equal size."""

    market: Market
    vcpus: int
    parts: int
    bid: int
    kind: Literal["buy"] = "buy"


@dataclass(frozen=True)
class BuyOnDemand:
    """Buy on-demand instances of the reliable type."""

    vcpus: int
    kind: Literal["buy_on_demand"] = "buy_on_demand"


class Marking(StrEnum):
    """A policy's decision about an allocation."""

    KEEP = "keep"
    LET_GO = "let_go"  # it ends with its hour
    RELEASE = "release"  # it ends now


@dataclass(frozen=True)
class Mark:
    """Keep an allocation, let it go with its hour, or release it now."""

    what: Marking
    number: int
    kind: Literal["mark"] = "mark"


Step = Annotated[Buy | BuyOnDemand | Mark, Field(discriminator="kind")]


@dataclass(frozen=True)
class Figures:
    """The figures behind a decision. spent in micro-dollars, work in vCPU seconds; the rest as the policy used it."""

    offers: int
    held_vcpus: int
    spent: int
    work_left_vcpu_s: float
    phi: float
    lambda_s: float
    sigma_s: float
    traffic_gb_per_h: float = 0.0


@dataclass(frozen=True)
class Opened:
    """The first line: the job, and the scheme that decides for it. least_s: that an on-demand machine is billed."""

    job: str
    scheme: str
    start_s: int
    least_s: int = 0
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True)
class Decided:
    """A decision: its steps will now be taken in this order."""

    at_s: int
    reason: str
    steps: tuple[Step, ...]
    fill: int | None
    wake_s: int | None
    wake_on_market: bool
    pulse: str
    figures: Figures
    wake_on_notice: bool = False
    kind: Literal["decided"] = "decided"


@dataclass(frozen=True)
class Ordered:
    """A purchase under way, until `Answered`. parts: the allocations that it is to be. due_s: when it may be placed."""

    at_s: int
    order: int
    market: Market
    vcpus: int
    parts: Annotated[int, Field(ge=1, le=MOST_PARTS)]
    bid: int
    due_s: int
    reliable: bool = False
    kind: Literal["ordered"] = "ordered"


@dataclass(frozen=True)
class Answered:
    """The market's answer to an order: its instances, or the reason for none. price: at `at_s`.

    by_market: the market had no room or was too dear; False: a quota, a limit of the stack or the job's end is the
    reason, which says nothing about the market, or none is known, as for the rest of an order that was filled in part.
    """

    at_s: int
    order: int
    price: int
    instances: tuple[Instance, ...]
    why: str = ""
    by_market: bool = True
    kind: Literal["answered"] = "answered"


class Skip(StrEnum):
    """A reason to skip a step that programs must recognize."""

    NOT_REPLACED = "not_replaced"  # a machine is kept: the one that was to replace it was not bought


@dataclass(frozen=True)
class Passed:
    """A step of the decision that the service skipped, and why (a guard, a full market)."""

    at_s: int
    why: str
    skip: Skip | None = None
    kind: Literal["passed"] = "passed"


@dataclass(frozen=True)
class Marked:
    """An allocation was kept or let go, as decided."""

    at_s: int
    kind: Literal["marked"] = "marked"


@dataclass(frozen=True)
class Ended:
    """An allocation ended. step: a step of the decision ended it."""

    at_s: int
    number: int
    ending: Ending
    step: bool = False
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True)
class HourPassed:
    """An instance hour is over and the allocation goes on at this price."""

    at_s: int
    number: int
    price: int
    kind: Literal["hour_passed"] = "hour_passed"


@dataclass(frozen=True)
class Worked:
    """How much work the job has done."""

    at_s: int
    done_vcpu_s: float
    kind: Literal["worked"] = "worked"


@dataclass(frozen=True)
class Noticed:
    """Notices that arrived for the first time."""

    at_s: int
    notices: tuple[InstanceNotice, ...]
    kind: Literal["noticed"] = "noticed"


@dataclass(frozen=True)
class Stray:
    """An instance with our tag that belongs to no allocation or order: the service gives it back."""

    at_s: int
    instance: Instance
    kind: Literal["stray"] = "stray"


@dataclass(frozen=True)
class Troubled:
    """The market's problems from now on, a sentence each; empty once they are over."""

    at_s: int
    sentences: tuple[str, ...]
    kind: Literal["troubled"] = "troubled"


@dataclass(frozen=True)
class Draining:
    """The service buys nothing more; the job saves its work, until the deadline at the latest."""

    at_s: int
    deadline_s: int
    reason: str
    code: int
    kind: Literal["draining"] = "draining"


@dataclass(frozen=True)
class Closing:
    """The job is over: the service gives everything back as of `at_s`."""

    at_s: int
    finished: bool
    reason: str
    code: int
    kind: Literal["closing"] = "closing"


@dataclass(frozen=True)
class Released:
    """The cloud took these instances back at the job's end. Until then they cost money, however late that is."""

    at_s: int
    instance_ids: tuple[str, ...]
    kind: Literal["released"] = "released"


@dataclass(frozen=True)
class Closed:
    """The service holds no instances any more."""

    at_s: int
    done_vcpu_s: float
    kind: Literal["closed"] = "closed"


Record = (
    Opened | Decided | Ordered | Answered | Passed | Marked | Ended | HourPassed | Worked | Noticed | Stray
    | Troubled | Draining | Closing | Released | Closed
)  # fmt: skip


class JournalError(RuntimeError):
    """A journal cannot be used; the message is one sentence."""


_ADAPTER: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])
_FORMAT = RecordFormat(
    _ADAPTER, JournalError, "a journal line", "another service runs this job; stop it first"
)


def read_journal(path: Path) -> Iterator[Record]:
    """The records of a journal, which may be in use; a last line without its end is left out. Raises JournalError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror})") from None
    yield from _FORMAT.parsed(data[: data.rfind(b"\n") + 1], path)


class Journal(RecordFile[Record]):
    """The file `journal.jsonl` of a folder, locked. A context manager; raises JournalError."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / JOURNAL, _FORMAT)
