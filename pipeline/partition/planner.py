"""PipeDream's optimizer (thesis 5.3.1): which layers form which stage, on how many devices.

`partition` is exact over every closed set of a branching model, with replicated stages over the levels of a
topology, for two cost models:

- "thesis": a stage on m components takes max(computing, 2 (m-1) w / B) / m, a cut 2 a / B.
- "released": the published optimizer's: (computing + 4 (m-1) w / (B m)) / m, a cut 2 max(a, a_end) / (B m'),
  the exchange of an uncut range divided by the components inside.

Where exactness would take too long it falls back to something smaller and says so in `Plan.notes`, with a
lower bound on every plan's time (`Plan.gap`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline.partition.assemble import alone_seconds, assemble, seconds_with_faster_links
from pipeline.partition.closed_sets import ClosedSets, closed_sets, prefixes
from pipeline.partition.components import components
from pipeline.partition.fallbacks import MAX_STATES, MAX_WORK, grouped_speeds, thinned, work
from pipeline.partition.memory import MemoryRules, Recompute, recomputing_stage_bytes, stage_bytes
from pipeline.partition.plan import Plan
from pipeline.partition.search import Segment, best_first
from pipeline.partition.tables import MODELS, Problem, Tables
from pipeline.profile.layers import Profile
from pipeline.topology.levels import Topology, check_devices

Progress = Callable[[int, int], None]


class PartitionError(ValueError):
    """No plan can be made; the message is one sentence that says why and what would help."""


class DoesNotFitError(PartitionError):
    """No plan fits the devices' memory."""


@dataclass(frozen=True)
class Options:
    """The options of `partition`; see there."""

    cost_model: str = "thesis"
    memory_bytes: float | None = None
    recompute: bool | str = False
    optimizer_factor: float = 1.0
    straight: bool = False
    max_stages: int | None = None
    device_speed: Sequence[float] | None = None
    prefixes_only: bool = False
    max_replicas: int | None = None  # of a stage, on a topology of one level
    group: int | None = None  # minibatches between two flushes; None: there is no flush


def partition(
    profile: Profile,
    topology: Topology,
    *,
    cost_model: str = "thesis",
    memory_bytes: float | None = None,
    recompute: bool | str = False,
    optimizer_factor: float = 1.0,
    straight: bool = False,
    max_stages: int | None = None,
    device_speed: Sequence[float] | None = None,
    prefixes_only: bool = False,
) -> Plan:
    """The fastest plan for a profile on a topology.

    memory_bytes: of each device (see pipeline.partition.memory); optimizer_factor: bytes of optimizer state per byte of
    weights. recompute: True (every stage), False, or "auto" (stages that would not fit otherwise). straight:
    no replicated stages. max_stages: the most stages. device_speed: one number per device (1 = the profiled
    one), innermost index fastest. prefixes_only: cut only at prefixes of the layers' order.
    Raises PartitionError, TopologyError.
    """
    options = Options(
        cost_model,
        memory_bytes,
        recompute,
        optimizer_factor,
        straight,
        max_stages,
        device_speed,
        prefixes_only,
    )
    return top_plans(profile, topology, 1, options)[0]


def top_plans(
    profile: Profile,
    topology: Topology,
    k: int,
    options: Options | None = None,
    *,
    on_progress: Progress | None = None,
) -> list[Plan]:
    """The k best different plans, best first (fewer if there are fewer). Raises as `partition`.

    on_progress: called with (rows done, rows in all) while the tables of a level fill.
    """
    if k < 1:
        raise PartitionError(f"at least one plan must be asked for, found {k}")
    solver = _Solver(profile, topology, options or Options(), only_best=k == 1, on_progress=on_progress)
    return solver.plans(topology.levels[-1][0], k)


def data_parallel_plan(profile: Profile, topology: Topology, options: Options | None = None) -> Plan | None:
    """One stage on every device, by the same cost model; None if it does not fit. Raises as `partition`."""
    options = replace(options or Options(), max_stages=None, prefixes_only=True, straight=False)
    solver = _Solver(profile, topology, replace(options, memory_bytes=None), only_best=True)
    plan = solver.alone()
    limit = options.memory_bytes
    return plan if limit is None or plan.stages[0].memory_bytes <= limit else None


def plans_for_machines(
    profile: Profile, topology: Topology, machines: Sequence[int], options: Options | None = None
) -> dict[int, Plan | DoesNotFitError]:
    """The best plan for several counts of the outermost components (servers), or why none fits them, in one go: the
    inner levels are solved once. Raises as `partition`, other than DoesNotFitError."""
    if len(machines) == 0 or min(machines) < 1:
        raise PartitionError(f"machines must be counts of 1 or more, found {list(machines)}")
    options = options or Options()
    if options.device_speed is not None:
        raise PartitionError(
            "plans for several counts of machines need equal devices: leave out device_speed"
        )
    solver = _Solver(profile, topology.with_outer_count(max(machines)), options, only_best=False)
    return {count: solver.best(count) for count in machines}


class _Solver:
    """The tables for one profile, topology and options, and the plans that come from them."""

    def __init__(
        self,
        profile: Profile,
        topology: Topology,
        options: Options,
        *,
        only_best: bool,
        on_progress: Progress | None = None,
    ) -> None:
        self.only_best = only_best
        self.on_progress = on_progress
        self.known_bound = 0.0
        self.profile, self.topology, self.options = profile, topology, options
        self.notes: list[str] = []
        self.exact = True
        self._check()
        speeds = options.device_speed
        self.speeds = (1.0,) * topology.devices if speeds is None else tuple(float(each) for each in speeds)
        self.memory = MemoryRules(
            options.memory_bytes, options.optimizer_factor, _recompute(options.recompute), options.group
        )
        self.tables = self._tables()

    def best(self, machines: int) -> Plan | DoesNotFitError:
        """The best plan on so many of the outermost components, or why none fits them."""
        try:
            return self.plans(machines, 1)[0]
        except DoesNotFitError as error:
            return error

    def plans(self, machines: int, k: int) -> list[Plan]:
        """The k best plans on so many of the outermost components."""
        problem = self.tables.problem
        levels = len(self.topology.levels)
        choices = self.tables.choices(levels, 0)
        c = choices.all if problem.parts.topology.levels[-1][0] == machines else machines
        topology = self.topology.with_outer_count(machines)
        keep = None if problem.limited or k > 1_000 else max(64, 4 * k)
        found: dict[object, Plan] = {}
        for seconds, segments in itertools.islice(best_first(self.tables, c, keep), 50 * k):
            plan = self._plan(segments, topology)
            assert plan.seconds_per_minibatch <= seconds * (1 + 1e-12), "the plan costs what its tables say"
            found.setdefault(tuple((s.layers, s.devices) for s in plan.stages), plan)
            if len(found) == k:
                break
        if not found:
            raise DoesNotFitError(self._why_nothing_fits(topology))
        return list(found.values())

    def alone(self) -> Plan:
        """One stage on every device."""
        problem = self.tables.problem
        inner: tuple[Segment, ...] | None = None
        for level, choices in enumerate(problem.parts.choices[1:], start=1):
            kind = problem.parts.type_of[level][0]
            # A mixture of component types runs one stage on all devices anyway.
            whole = choices[kind].counts[-1]
            mixed = sum(count > 0 for count in whole) > 1
            inner = (Segment(0, len(problem.sets) - 1, whole, None if mixed else inner),)
        assert inner is not None
        return self._plan(inner, self.topology)

    def _plan(self, segments: tuple[Segment, ...], topology: Topology) -> Plan:
        problem = self.tables.problem
        speeds = self.speeds[: topology.devices]
        stages, terms = assemble(problem, segments, speeds)
        seconds = max(term.seconds for term in terms)
        # The tables of a limit that does not bind were made without it; data parallelism may still not fit.
        here = replace(problem, parts=replace(problem.parts, topology=topology), memory=self.memory)
        notes = list(self.notes)
        stage_of = {layer: i for i, stage in enumerate(stages, start=1) for layer in stage.layers}
        for group in self.profile.tied:
            if len(where := sorted({stage_of[layer] for layer in group})) > 1:
                notes.append(
                    f"Layers {', '.join(map(str, group))} share weights but stand in stages "
                    f"{', '.join(map(str, where))}: their gradients must be added up across stages, and the "
                    "later ones keep copies: neither is in the times and the memory above."
                )
        return Plan(
            model=self.profile.model,
            topology=str(topology),
            cost_model=self.options.cost_model,
            stages=stages,
            terms=terms,
            seconds_per_minibatch=seconds,
            data_parallel_seconds=alone_seconds(here, speeds),
            single_seconds=self.profile.single_seconds / max(speeds),
            lower_bound_seconds=seconds if self.exact else min(seconds, self._lower_bound(topology)),
            faster_links=seconds_with_faster_links(problem, segments, speeds),
            notes=tuple(notes),
        )

    def _check(self) -> None:
        options = self.options
        if options.cost_model not in MODELS:
            raise PartitionError(
                f"cost model must be one of {', '.join(MODELS)}, found {options.cost_model!r}"
            )
        if options.memory_bytes is not None and not options.memory_bytes > 0:
            raise PartitionError(f"memory must be a positive number of bytes, found {options.memory_bytes}")
        if options.max_replicas is not None and (options.max_replicas < 1 or len(self.topology.levels) > 1):
            raise PartitionError(
                f"max_replicas is {options.max_replicas}; expected at least 1, and a topology of one level"
            )
        if not options.optimizer_factor >= 0:
            raise PartitionError(f"the optimizer factor must be 0 or more, found {options.optimizer_factor}")
        if options.max_stages is not None and options.max_stages < 1:
            raise PartitionError(f"there must be at least one stage, found a limit of {options.max_stages}")
        count = len(self.profile.layers)
        if options.max_stages is not None and options.max_stages > count:
            raise PartitionError(
                f"{options.max_stages} stages are more than the {count} layers of {self.profile.model}: "
                f"ask for {count} or fewer"
            )
        check_devices(self.topology, options.device_speed)

    def _problem(self, sets: ClosedSets, memory: MemoryRules, speeds: Sequence[float]) -> Problem:
        equal = len(set(speeds)) == 1 and speeds[0] == 1.0
        return Problem(
            sets=sets,
            input_bytes=self.profile.input_bytes,
            parts=components(self.topology, None if equal else tuple(speeds)),
            cost_model=self.options.cost_model,
            memory=memory,
            straight=self.options.straight,
            # A limit that cannot bind is no limit: the tables are smaller without.
            max_stages=None
            if self.options.max_stages is None
            or self.options.max_stages >= min(self.topology.devices, len(sets) - 1)
            else self.options.max_stages,
            max_replicas=self.options.max_replicas,
        )

    def _tables(self) -> Tables:
        sets = prefixes(self.profile) if self.options.prefixes_only else closed_sets(self.profile, MAX_STATES)
        if not sets.is_all:
            self.exact = bool(self.options.prefixes_only and sets.is_chain and self._is_chain())
            if not self.options.prefixes_only:
                self.notes.append(
                    f"The model has more than {MAX_STATES} closed sets: cut only at prefixes of its order."
                )
        speeds = self._grouped_speeds()
        problem = self._problem(sets, self.memory, speeds)
        if speeds != self.speeds:
            self.known_bound = self._bound_from_faster_devices(sets)
        elif problem.limited and sets.is_all:
            # No plan is faster than the best one without the limit; if that fits, there is no more to do.
            unlimited = replace(problem, memory=replace(self.memory, limit_bytes=None))
            if unlimited.fast or work(unlimited) <= MAX_WORK:
                free = Tables(unlimited)
                best = next(best_first(free, free.choices(len(self.topology.levels), 0).all, 64))
                self.known_bound = best[0]
                if self.only_best and self._fits(free, best[1]):
                    return free
        if not problem.fast and work(problem) > MAX_WORK:
            return self._coarse(problem, speeds)
        return Tables(problem, self.on_progress)

    def _is_chain(self) -> bool:
        return closed_sets(self.profile, len(self.profile.layers) + 1).is_chain

    def _fits(self, tables: Tables, segments: tuple[Segment, ...]) -> bool:
        limit = self.memory.limit_bytes
        assert limit is not None
        stages, _ = assemble(tables.problem, segments, self.speeds)
        return all(stage.memory_bytes <= limit for stage in stages)

    def _grouped_speeds(self) -> tuple[float, ...]:
        """The speeds, rounded down to fewer different ones where there are too many combinations."""
        down, _ = grouped_speeds(self.speeds, self.topology)
        if down != self.speeds:
            self.exact = False
            self.notes.append(
                f"{len(set(self.speeds))} different device speeds were treated as {len(set(down))}, each "
                "rounded down; the bound is from rounding up."
            )
        return down

    def _bound_from_faster_devices(self, sets: ClosedSets) -> float:
        """The best seconds with the grouped speeds rounded up instead: no plan on the real ones is faster."""
        _, up = grouped_speeds(self.speeds, self.topology)
        faster = self._problem(sets, replace(self.memory, limit_bytes=None), up)
        if not sets.is_all or (not faster.fast and work(faster) > MAX_WORK):
            return 0.0
        best = next(best_first(Tables(faster), faster.parts.choices[-1][0].all, 64))
        return best[0]

    def _coarse(self, problem: Problem, speeds: Sequence[float]) -> Tables:
        """Smaller tables: without telling apart how many devices of a machine work; else fewer places to cut."""
        self.exact = False
        if problem.limited and work(replace(problem, whole=True)) <= MAX_WORK:
            tables = Tables(replace(problem, whole=True), self.on_progress)
            if next(best_first(tables, problem.parts.choices[-1][0].all, 64), None) is not None:
                self.notes.append(
                    "Too large to be exact: in each machine in use all devices count as at work."
                )
                return tables
        whole = prefixes(self.profile)
        wanted = len(whole)
        while True:
            sets = thinned(whole, wanted)
            problem = self._problem(sets, self.memory, speeds)
            if work(problem) <= MAX_WORK or wanted <= 4:
                break
            wanted = int(wanted * 0.8)
        self.notes.append(
            f"Too large to be exact under these limits: cut at {len(sets) - 2} of {len(whole) - 2} places of "
            "the layers' order."
        )
        return Tables(problem, self.on_progress)

    def _lower_bound(self, topology: Topology) -> float:
        """No plan is faster: the devices share the work evenly at best, and every layer is in some stage."""
        speeds = sorted(self.speeds[: topology.devices], reverse=True)
        bound = self.profile.single_seconds / sum(speeds)
        if self.options.straight:
            bound = max(bound, max(layer.compute_s for layer in self.profile.layers) / speeds[0])
        if topology.levels[-1] == self.topology.levels[-1]:
            bound = max(bound, self.known_bound)
        return bound

    def _why_nothing_fits(self, topology: Topology) -> str:
        limit = self.memory.limit_bytes
        assert limit is not None, "without a memory limit one stage on one device is a plan"
        worst, need, held, factor = 0, 0.0, self.memory.held(1), self.memory.optimizer_factor
        for i, layer in enumerate(self.profile.layers):
            function = stage_bytes(held, layer.parameter_bytes, layer.activation_bytes, factor)
            if self.memory.recompute is Recompute.ALWAYS:
                function = recomputing_stage_bytes(
                    held, layer.parameter_bytes, layer.activation_bytes, 0.0, factor
                )
            if function > need:
                worst, need = i, function
        name = " ".join(self.profile.layers[worst].name.split())[:60]
        if need > limit:
            return (
                f"layer {worst} ({name}) alone needs {need / 1e9:.3g} GB and a device has {limit / 1e9:.3g} GB: "
                "take devices with more memory or a smaller minibatch"
            )
        help_text = "more memory per device, a smaller minibatch or more devices"
        if self.memory.recompute is Recompute.NEVER:
            help_text = "recomputing, " + help_text
        # A hint is worth a few seconds, not minutes.
        is_quick = work(self.tables.problem) <= MAX_WORK / 10
        for factor in (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64) if is_quick else ():
            wider = replace(self.memory, limit_bytes=limit * factor)
            tables = Tables(replace(self.tables.problem, memory=wider))
            if next(best_first(tables, tables.choices(len(topology.levels), 0).all, 64), None):
                help_text += f" (with {limit * factor / 1e9:.3g} GB per device there is a plan)"
                break
        return (
            f"no plan on {topology.devices} devices fits in {limit / 1e9:.3g} GB each; the largest layer is "
            f"{worst} ({name}) with {need / 1e9:.3g} GB; what would help: {help_text}"
        )


def _recompute(value: bool | str) -> Recompute:
    if value == "auto":
        return Recompute.WHERE_NEEDED
    if isinstance(value, bool):
        return Recompute.ALWAYS if value else Recompute.NEVER
    raise PartitionError(f'recompute must be true, false or "auto", found {value!r}')
