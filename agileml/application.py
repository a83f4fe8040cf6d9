"""The interface that a user implements: the tables of a model, the items of a slice, and the updates of a unit of work.

An application knows nothing of machines. The engine cuts every clock into units (a unit is a fixed share of the
items of one slice at one clock), deals the units to the workers that there are, and adds up the updates that they
return. The sum over all units of a clock is that clock's update, whichever workers computed them.

Long because it is the whole contract of a user's code, and is read as one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Ranges = Sequence[tuple[int, int]]  # of a flat table: ascending, [start, stop)
Parts = Sequence[tuple[int, Array]]  # of a flat table: where each part begins, and its elements

_POOL_WORDS = 4  # of NumPy's SeedSequence: it takes longer keys as they are
_ENDS_IN_ZERO = 1 << 63  # beyond every clock, slice and part


class DeviceVector(ABC):
    """Updates of a resident table, flat, in the memory of a device, such as a gradient on a GPU.

    The engine cuts and adds them where they are, and hands them to the collectives of the machine and to its replica.
    It never reads their numbers.
    """

    size: int
    nbytes: int
    dtype: np.dtype[Any]

    @abstractmethod
    def __getitem__(self, at: slice) -> DeviceVector:
        """Some elements, in the same memory."""

    @abstractmethod
    def add(self, other: DeviceVector) -> None:
        """Add the elements of a vector of this size, in place."""

    @abstractmethod
    def plus(self, other: DeviceVector) -> DeviceVector:
        """The sum with a vector of this size, in memory of its own."""

    @abstractmethod
    def joined(self, pieces: Sequence[DeviceVector]) -> DeviceVector:
        """The elements of vectors on this device, one after the other: without a copy where they are neighbours."""


class Update(Enum):
    """How the engine uses the summed updates of a clock."""

    GRADIENT = "gradient"  # the optimizer of the job takes one step along them
    STEP = "step"  # added to the parameters as they are
    NONE = "none"  # no unit updates it: the replica of each machine does, when it takes a step
    LOSS_SCALE = "loss_scale"  # no unit updates it: the engine does, by a `LossScaleRule`

    @property
    def is_by_units(self) -> bool:
        """Units return updates of such a table."""
        return self in (Update.GRADIENT, Update.STEP)


@dataclass(frozen=True)
class LossScaleRule:
    """How the loss scale changes: times `backoff` after a clock whose gradient is not finite, times `growth` after
    `interval` finite clocks in a row (the numbers of torch.amp.GradScaler)."""

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000


@dataclass(frozen=True)
class Range:
    """One parameter of a table: the elements before `stop`, from where the range before it ends.

    If every element of its summed updates is -0.0, no unit had a gradient for it, and the optimizer leaves it alone. Of
    a sparse table it leaves those rows alone for which no unit returned an update.
    """

    name: str
    stop: int


@dataclass(frozen=True)
class Table:
    """A matrix of parameters of shape (rows, columns).

    `sparse`: read and updated by row; otherwise every unit reads the whole table and updates all of it.
    `ranges`: the parameters that a table is made of, in order, all of it (of a sparse table one); empty where they have
    no names.
    `may_be_infinite`: infinities are values as others are; otherwise they end the run, as NaN does everywhere.
    `resident`: its values are in the application's replica (`Application.replica`) on every machine; units do not get
    it among their parameters. Only with an all-reduce.
    """

    name: str
    rows: int
    columns: int
    dtype: str = "float32"
    sparse: bool = False
    update: Update = Update.GRADIENT
    may_be_infinite: bool = False
    ranges: tuple[Range, ...] = ()
    resident: bool = False

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(
                f"table {self.name!r} has shape ({self.rows}, {self.columns}), expected >= (1, 1)"
            )
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"table {self.name!r} has dtype {self.dtype!r}, expected float32 or float64")


@dataclass(frozen=True)
class Unit:
    """The smallest piece of work that is counted: part `part` of `parts` of slice `slice` in clock `clock`
    (0-based)."""

    clock: int
    slice: int
    part: int = 0
    parts: int = 1

    def range_of(self, items: int, clocks_per_pass: int) -> tuple[int, int]:
        """(start, stop) of this unit among the `items` items of its slice, when a pass takes so many clocks.

        Over a pass every item is in exactly one unit; sizes differ by at most one.
        """
        pieces = clocks_per_pass * self.parts
        piece = (self.clock % clocks_per_pass) * self.parts + self.part
        return piece * items // pieces, (piece + 1) * items // pieces


@dataclass(frozen=True)
class Updates:
    """The result of a unit. `tables` maps a table's name to an array of updates in the table's dtype.

    A dense table's array has the table's shape; a resident table's may be a DeviceVector of all its elements, in a
    process that has the replica. A sparse table's array has one row for each row that `reads` named, in
    that order, or for each in `rows[name]`, some of these. Tables without an entry are not updated. `loss` is a sum
    over `examples` examples.
    `metrics`: of some names in `Application.metrics()`, a weighted sum over what the unit evaluated, and its weight.
    """

    tables: Mapping[str, Array | DeviceVector]
    loss: float = 0.0
    examples: int = 0
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rows: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """The parts of a job that an application sees: its sections of the config, and how work is cut.

    `optimizer`: the section, where the application's replica takes the steps (`kind: torch`); otherwise empty.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    slices: int = 1
    clocks_per_pass: int = 1
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    units_per_slice: int = 1
    is_deterministic: bool = False  # a unit gives the same bits each time
    is_alone: bool = False  # there is one machine at most: nobody waits for its sums or compares its seconds
    is_staged: bool = False  # units go through the stages of a pipeline: compute as those do, bit for bit
    has_devices: bool = True  # False: machines reserve none, so no process chooses one by itself

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers that depend on the job's seed and `key` alone, not on the process that draws them."""
        # NumPy fills a short key up with zeros: unmarked, a slice's (7) would be the (7, 0, 0) of a unit.
        mark = (_ENDS_IN_ZERO,) if key and key[-1] == 0 and len(key) < _POOL_WORDS else ()
        return np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, *key, *mark))))


class ArrivingTables(dict[str, Array]):
    """The parameters of a unit, of which parts of dense tables may still be on their way: read an element only after
    `wait` for it. Every wait may end the computation, with an error that user code lets pass."""

    def __init__(self, tables: Mapping[str, Array], wait: Callable[[str, int, int], None]) -> None:
        super().__init__(tables)
        self._wait = wait

    def wait(self, table: str, start: int = 0, stop: int | None = None) -> None:
        """Return when elements [start, stop) of a flat dense table are here; stop None: to its end."""
        self._wait(table, start, self[table].size if stop is None else stop)

    def wait_for_all(self) -> None:
        """Return when every element of every table is here."""
        for table in self:
            self.wait(table)


class PendingCopy(Protocol):
    """A copy of some elements of a replica's tables at one version, which another thread may still be filling in."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """One array for each range that was asked for, in the dtype of its table. They may be kept."""

    def is_done(self) -> bool:
        """True when the arrays hold the values."""

    def wait(self) -> None:
        """Return when the arrays hold the values."""

    def is_finite(self) -> bool:
        """Asked once the arrays hold the values: True when the copying saw that none is NaN or infinite, False when one
        may be."""


class Replica(Protocol):
    """The resident tables of one machine where it computes, and the optimizer that steps them there.

    The machines' replicas must stay equal: a step depends on its arguments and the values alone. Calls come while no
    unit of the view in force is computed; a unit of an abandoned one may be.
    """

    def place(self, values: Mapping[str, Parts], steps: Mapping[str, Ranges] | None = None) -> None:
        """Take values of resident tables, each flat, in parts. A table that units update keeps the elements that are
        not given; of any other table all elements are given that this replica is to hold.

        steps: the ranges of each table that units update which this replica steps, and of which it holds the
        optimizer's state. None: all.
        """

    def read(self, table: str, start: int, stop: int) -> Array:
        """Elements [start, stop) of a table, as a new array of the table's dtype."""

    def copy(self, ranges: Sequence[tuple[str, int, int]]) -> PendingCopy:
        """Begin to copy elements [start, stop) of tables, given as (table, start, stop), as they are now.

        Units may be computed meanwhile; a `step` or `place` that would change the values waits until they are copied.
        """

    def step(self, clock: int, updates: Mapping[str, Array | DeviceVector]) -> None:
        """Take the step of `clock` (0-based) along the summed updates, each flat and whole. They may be overwritten.

        A replica that steps some ranges alone leaves their new values there in the updates.
        """

    def complete(self, updates: Mapping[str, Array | DeviceVector]) -> None:
        """Take the new values of all other ranges from the updates that `step` had, where other replicas left them."""


@dataclass(frozen=True)
class StageOutput:
    """A unit's output: tensors for the next stage; at the last, the sum of the items' losses, and their number."""

    outgoing: tuple[Wire, ...] = ()
    loss: float = 0.0
    examples: int = 0


@dataclass(frozen=True)
class StagePlan:
    """Partitions of consecutive layers: their ends in each table, all dense ones, the seconds that each takes, and the
    bytes that a unit sends on behind each, for a planner; none where that is not known."""

    borders: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wire:
    """A tensor between two stages: its elements as they lie in memory (flat), and the strides of its dimensions."""

    values: Array
    strides: tuple[int, ...]


class Stage(Protocol):
    """Some consecutive layers. A unit goes forward, then back, then its updates are taken; several may be under way."""

    def use(self, blocks: Sequence[tuple[Array, ...]]) -> None:
        """Take the parameters for the next forwards: of each of its partitions a flat block of each table. Units under
        way go back with those that they came with."""

    def overwrite(self, blocks: Sequence[tuple[Array, ...]]) -> None:
        """As `use`, but units under way go back with these."""

    def forget(self) -> None:
        """Forget units under way."""

    def forward(self, unit: Unit, items: Any, incoming: Sequence[Wire], *, defer: bool) -> StageOutput:
        """The forward of a unit, whose slice has these items. defer: `backward` may put gradients of weights off."""

    def backward(self, unit: Unit, gradients: Sequence[Wire | None]) -> list[Wire | None]:
        """From the gradients of its outputs to those of its inputs; the last stage takes those of its loss."""

    def updates(self, unit: Unit) -> list[tuple[Array | None, ...]]:
        """The updates of a unit: of each partition a flat block of each table, None where there is no update. Computes
        gradients that were put off."""


class Stages(Protocol):
    """A model that can be cut into stages."""

    @property
    def most_partitions(self) -> int:
        """Groups of parameters between which it can be cut."""

    def plan(self, most: int) -> StagePlan:
        """At most so many partitions, the same wherever it is asked, and the seconds that their layers take here."""

    def stage(self, borders: Sequence[Sequence[int]], first: int, stop: int) -> Stage:
        """The stage that holds the partitions first .. stop - 1."""


class InputError(ValueError):
    """Bad input of the user. The message is one sentence: what was found, where, and what is expected.

    It ends up in logs, so addresses in it show no secrets.
    """

    def __init__(self, sentence: str = "") -> None:
        super().__init__(without_secrets(sentence))


# An address of fsspec's may have another one behind `::`, and a quote may be a part of each.
_ADDRESS = re.compile(
    r"([a-z][a-z0-9+.-]{0,20}://)([^\s/?#'\"]*@)?"
    r"((?:(?!::[a-z][a-z0-9+.-]{0,20}://)(?:[^\s?#'\"]|['\"](?=\w)))*)"
    r"(\?(?:[^\s'\"]|['\"](?=[\w&=%]))*)?",
    re.IGNORECASE,
)
_WITHOUT_HOST = re.compile(r"(\burl: /[^\s?]*)\?\S+", re.IGNORECASE)  # as urllib3 says it, and so requests


def without_secrets(text: str) -> str:
    """A text with neither user and password nor the query, which may be a signature, in any web address; in others,
    such as sftp://, without a password. Their `?` is a part of a name, and abfs:// has a container before its `@`."""

    def shown(address: re.Match[str]) -> str:
        scheme, user, place, query = address.groups("")
        is_web = scheme.lower().endswith(("http://", "https://"))
        user = "...@" if user and (is_web or ":" in user) else user
        return scheme + user + place + ("?..." if query and is_web else query)

    return _WITHOUT_HOST.sub(r"\1?...", _ADDRESS.sub(shown, text))


class Application(ABC):
    """A model and its data. Every worker has one instance, which keeps no state between units.

    `waits_for_parameters`: units are given `ArrivingTables` in a job that overlaps, and wait for what they read.
    `sums_are_exact`: updates add up to the same bits in any order, as whole numbers do, and there is `process_each`.
    """

    waits_for_parameters = False
    sums_are_exact = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def with_settings(self, settings: Settings) -> Application:
        """A copy, for a job, of an instance that the user made: with the job's settings, beside keys of `data` and
        `model` that only the instance has, and without cached properties, which followed from its own settings.
        Override it if the constructor keeps more of them."""
        mine, own = getattr(self, "settings", Settings()), copy(self)  # a constructor of its own may set none
        own.settings = replace(
            settings, data={**mine.data, **settings.data}, model={**mine.model, **settings.model}
        )
        for name in vars(self):
            if isinstance(getattr(type(self), name, None), cached_property):
                del own.__dict__[name]
        return own

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """The parameters. Raises InputError when the data cannot be read or does not fit."""

    def initial(self, table: Table) -> Array:
        """Values of a table before clock 0, shape (rows, columns). Zeros unless overridden, and always of a table that
        no unit updates."""
        return np.zeros((table.rows, table.columns), table.dtype)

    def most_slack(self) -> int | None:
        """The most clocks by which a unit's reads may be behind; None (the default): any number.

        A unit that replaces what it reads, by adding the difference, must read all that the pass before has written.
        A job whose consistency allows more is refused.
        """
        return None

    @abstractmethod
    def load(self, slice_index: int) -> Any:
        """The items of one of `settings.slices` slices, in any form; `reads` and `process` get it back."""

    def check(self) -> None:
        """Called once, before any machine starts, in the process that starts them: find out here what would otherwise
        end the run later. Raises InputError. Does nothing unless overridden."""
        return

    def brings(self) -> Mapping[str, Any]:
        """Sections of the config that the application itself decides, such as `optimizer`; none unless overridden.

        Raises InputError.
        """
        return {}

    def learning_rate_factor(self, clock: int) -> float:
        """The factor of the learning rate at a clock, for a schedule of kind `application`. Raises InputError."""
        raise InputError(
            "optimizer.schedule.kind: found application, expected an application that has a schedule"
        )

    def as_sent(self) -> Application | None:
        """The application as machines get it; None (the default): they build it from the config."""
        return None

    def warm_up(self) -> None:
        """Called once in every process that computes, before it joins the run. Compile or import here what the first
        unit would otherwise wait for, and all machines with it. Does nothing unless overridden."""
        return

    def use_threads(self, count: int) -> None:
        """Called in a compute process: compute with so many threads from now on. BLAS, OpenMP and numba are limited to
        them already; for libraries with a number of their own. Does nothing unless overridden."""
        return

    def started(self) -> None:
        """Called when a machine has taken its part of the initial values: drop data that only `initial` needs.
        `initial` is called again only if all machines go back to the start. Does nothing unless overridden."""
        return

    def replica(self, rate_at: Callable[[int], float]) -> Replica | None:
        """Called once in every machine, and in a sequential run, of a job with resident tables: the object that holds
        and steps them. `rate_at` gives the learning rate of a clock (0-based). None (the default): no such tables."""
        return None

    def share_ends(self, partitions: int) -> Mapping[str, Sequence[int]]:
        """Where each partition ends in every resident table that units or replicas update, so that a replica can step
        each partition by itself. Only called where machines share the optimizer's state out."""
        raise NotImplementedError

    def loss_scale(self) -> LossScaleRule | None:
        """How losses are scaled: units then read the scale as element 0 of the table `loss_scale`, and a clock whose
        summed gradient is not finite takes no step. None (the default): they are not."""
        return None

    def metrics(self) -> Sequence[str]:
        """Names of the metrics that units may return: each is a mean over all units of a clock, of the parameters that
        the clock began with."""
        return ()

    def evaluates_every(self) -> int | None:
        """Clocks from one evaluation of `metrics` to the next, at clocks that are multiples of it; None: never."""
        return None

    def stages(self) -> Stages | None:
        """The model in stages, for a pipeline; None where it cannot be cut. Raises InputError."""
        return None

    def ended(self) -> None:
        """Called when a process has computed its last unit: end what `warm_up` or the units began. Does nothing unless
        overridden."""
        return

    def reads(self, unit: Unit, items: Any) -> Mapping[str, Array]:
        """For each sparse table the rows that the unit reads: ascending, distinct, int32 or int64."""
        return {}

    @abstractmethod
    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        """The updates of a unit.

        `parameters` has every table: a dense one whole, of a sparse one the rows that `reads` named, in that
        order. They are read-only and only valid during the call. The returned arrays must be new, and must depend on
        the arguments and the settings alone.
        """

    def process_many(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> Updates | None:
        """The summed updates of several units at once, or None (the default): one by one with `process`.

        Only called when the job is not deterministic, unless `sums_are_exact`. `items[i]` belongs to `units[i]`; `rows`
        has for each sparse table the union of what the units read, and `parameters` and the updates have these rows.
        """
        return None

    def process_each(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> list[Updates]:
        """As `process` of each unit from the same parameters, of which `rows` has the rows as in `process_many`.

        Called in place of `process_many` if `sums_are_exact`, in a deterministic job too. The engine adds up all that
        is returned, in the order of the units, so one of them may have the sum of all tables.
        """
        raise NotImplementedError

    def process_streaming(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        parameters: Mapping[str, Array],
        ready: Callable[[str, Array | DeviceVector, int, int], None],
    ) -> Updates | None:
        """As `process` or `process_many`, reporting final elements on the way; None (the default): not supported.

        `ready(table, values, start, stop)` says that elements [start, stop) of `values`, the flat array of a dense
        table's updates that will be returned, are final. Ranges must not overlap. Only called when the job has one
        table, a dense one; final elements are sent while the rest is computed.
        """
        return None

    def as_model(self, parameters: Mapping[str, Array]) -> Mapping[str, Any]:
        """The result (whole tables) as model.safetensors is to hold it: NumPy arrays or torch tensors by name."""
        return parameters

    def optimizer_state(
        self, slots: Sequence[Mapping[str, Array]], optimizer: Mapping[str, Any], clocks: int, factor: float
    ) -> Any | None:
        """The state of the optimizer after `clocks` clocks for optimizer.pt, as torch.save takes it; None: no file.

        clocks: without those that took no step; with supersteps the minibatches, each of which was a step.
        factor: of the learning rate, at the next clock.
        slots: for each array of state that the optimizer has (momentum; first and second moments), its tables; in a job
        with resident tables all tables, as one entry.
        optimizer: the section of the config.
        """
        return None

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        """Metrics of the final parameters (whole tables), for example the error on a test split."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Facts about data and split for the summary, for example sizes and the seed of the split."""
        return {}
