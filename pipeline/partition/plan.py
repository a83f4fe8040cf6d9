"""A plan: which layers make up each stage, on which devices, and where each of its seconds comes from.

Plans print as text and parse back to an equal plan.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from enum import Enum

from pipeline.topology.levels import parse_topology


class PlanError(ValueError):
    """Text that is not a plan; the message is one sentence."""


class Source(Enum):
    """The cause of a term of a plan's time."""

    COMPUTE = "compute"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"


@dataclass(frozen=True)
class Stage:
    """A stage as every one of its replicas runs it.

    layers: indices in the profile. devices: one per replica, in the order in which they take minibatches.
    forward_s, backward_s: of one minibatch on the slowest of its devices, recomputing included.
    parameter_bytes, activation_bytes: of its layers. input_bytes, output_bytes: received and sent on per
    minibatch (0 at the last stage). in_flight: minibatches that a replica keeps. memory_bytes: what that takes
    on each device.
    """

    layers: tuple[int, ...]
    devices: tuple[int, ...]
    forward_s: float
    backward_s: float
    parameter_bytes: float
    activation_bytes: float
    input_bytes: float
    output_bytes: float
    in_flight: int
    memory_bytes: float
    recompute: bool

    @property
    def replicas(self) -> int:
        """How many devices run this stage."""
        return len(self.devices)

    @property
    def kept_bytes(self) -> float:
        """Bytes of a minibatch in flight besides its version of the weights: its activations, or only the
        stage's input where they are computed again."""
        return self.input_bytes if self.recompute else self.activation_bytes

    @property
    def compute_s(self) -> float:
        """Seconds of forward and backward of one minibatch on one replica."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Term:
    """One thing that bounds the rate: seconds per minibatch of the whole plan.

    first_stage, last_stage: 1-based; for activations the stages on both sides of the cut. level: of the links
    (0 for computing). amount: seconds of one replica, or the bytes that move per minibatch (activations) or
    per exchange (weights).
    """

    source: Source
    first_stage: int
    last_stage: int
    level: int
    amount: float
    seconds: float

    def sentence(self) -> str:
        """The term in words."""
        if self.source is Source.ACTIVATIONS:
            return (
                f"activations and gradients between stages {self.first_stage} and {self.last_stage} "
                f"({self.amount / 1e6:.1f} MB each way over level-{self.level} links)"
            )
        stages = f"stage {self.first_stage}"
        if self.last_stage != self.first_stage:
            stages = f"stages {self.first_stage} to {self.last_stage}"
        if self.source is Source.COMPUTE:
            return f"computing in {stages}"
        return (
            f"adding up the gradients of {stages} ({self.amount / 1e6:.1f} MB over level-{self.level} links)"
        )


@dataclass(frozen=True)
class Plan:
    """A pipeline for a model on a topology.

    seconds_per_minibatch: the largest of `terms`. data_parallel_seconds: one stage on every device, by the
    same cost model (infinite if that does not fit). single_seconds: one device. lower_bound_seconds: no plan
    is faster; equal to seconds_per_minibatch where the search was exact. faster_links: for each level, the
    seconds of this very plan with links twice as fast. notes: sentences a reader should know.
    """

    model: str
    topology: str
    cost_model: str
    stages: tuple[Stage, ...]
    terms: tuple[Term, ...]
    seconds_per_minibatch: float
    data_parallel_seconds: float
    single_seconds: float
    lower_bound_seconds: float
    faster_links: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> str:
        """As table 5.1 writes it: replicas per stage, `straight`, or `data parallel`."""
        replicas = [stage.replicas for stage in self.stages]
        if len(replicas) == 1:
            return "data parallel" if replicas[0] > 1 else "one device"
        if max(replicas) == 1:
            return "straight"
        return "-".join(str(r) for r in replicas)

    @property
    def workers(self) -> int:
        """Devices that the plan uses."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def speedup(self) -> float:
        """Over data parallelism on all devices, by the same cost model."""
        return self.data_parallel_seconds / self.seconds_per_minibatch

    def against(self) -> str:
        """Data parallelism's time and how much faster the plan is, in words."""
        if math.isinf(self.data_parallel_seconds):
            return "does not fit"
        return f"{self.data_parallel_seconds * 1e3:.3f} ms ({self.speedup:.2f}x)"

    @property
    def gap(self) -> float:
        """How much slower than the best the plan can be at most: 0 where the search was exact."""
        return self.seconds_per_minibatch / self.lower_bound_seconds - 1

    def machines(self, stage: Stage) -> tuple[int, ...]:
        """The outermost components (servers) that hold a stage's devices."""
        topology = parse_topology(self.topology)
        size = topology.component_devices(len(topology.levels) - 1)
        return tuple(sorted({device // size for device in stage.devices}))

    def bottleneck(self) -> Term:
        """The term that decides the plan's rate."""
        return max(self.terms, key=lambda term: term.seconds)

    def explain(self) -> str:
        """The plan in plain words: its shape, what is slowest, what a faster link would change."""
        worst = self.bottleneck()
        lines = [
            f"{self.model} on {self.topology}: {self.config}, {self.workers} devices, "
            f"{self.seconds_per_minibatch * 1e3:.3f} ms per minibatch by the {self.cost_model} cost model; "
            f"one device takes {self.single_seconds * 1e3:.3f} ms, data parallelism {self.against()}.",
            f"Slowest: {worst.sentence()}, {worst.seconds * 1e3:.3f} ms.",
        ]
        if self.cost_model == "released":
            lines.append("Computing includes the exchange of gradients: this cost model adds the two.")
        others = sorted((t for t in self.terms if t is not worst), key=lambda term: -term.seconds)
        if others:
            lines.append(f"Next: {others[0].sentence()}, {others[0].seconds * 1e3:.3f} ms.")
        for level, seconds in enumerate(self.faster_links, start=1):
            gain = 1 - seconds / self.seconds_per_minibatch
            lines.append(
                f"Level-{level} links twice as fast: {seconds * 1e3:.3f} ms ({gain:.0%} less) with this plan."
                if gain > 5e-4
                else f"Level-{level} links twice as fast would not change this plan's rate."
            )
        if self.gap > 1e-9:
            lines.append(f"Not proven best: at most {self.gap:.1%} slower than the best plan.")
        return "\n".join([*lines, *self.notes])

    def table(self) -> str:
        """One line per stage."""
        rows = [
            f"{'stage':>5} {'layers':<26} {'replicas':>8} {'devices':<22} {'fwd ms':>8} {'bwd ms':>8} "
            f"{'weights MB':>10} {'sends MB':>9} {'in flight':>9} {'memory MB':>9}"
        ]
        for number, stage in enumerate(self.stages, start=1):
            rows.append(
                f"{number:>5} {_short(stage.layers, 26):<26} {stage.replicas:>8} "
                f"{_short(stage.devices, 22):<22} {stage.forward_s * 1e3:>8.3f} "
                f"{stage.backward_s * 1e3:>8.3f} {stage.parameter_bytes / 1e6:>10.2f} "
                f"{stage.output_bytes / 1e6:>9.2f} {stage.in_flight:>9} {stage.memory_bytes / 1e6:>9.1f}"
                + (" recomputes" if stage.recompute else "")
            )
        return "\n".join(rows)

    def to_text(self) -> str:
        """The plan as lines `key: value`; `parse_plan` gives it back."""
        lines = ["plan 1"]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("stages", "terms", "notes"):
                continue
            lines.append(f"{item.name}: {json.dumps(value)}")
        for number, stage in enumerate(self.stages, start=1):
            values = asdict(stage)
            text = " ".join(
                f"{key}={_ranges(v) if isinstance(v, tuple) else json.dumps(v)}" for key, v in values.items()
            )
            lines.append(f"stage {number}: {text}")
        for term in self.terms:
            values = asdict(term) | {"source": term.source.value}
            lines.append("term: " + " ".join(f"{key}={value}" for key, value in values.items()))
        lines += [f"note: {json.dumps(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"


def parse_plan(text: str) -> Plan:
    """The plan that `Plan.to_text` printed. Raises PlanError, whose sentence names the line."""
    lines = text.strip().splitlines()
    if not lines or lines[0].strip() != "plan 1":
        raise PlanError('not a plan: the first line must be "plan 1"')
    values: dict[str, object] = {}
    stages: list[Stage] = []
    terms: list[Term] = []
    notes: list[str] = []
    for number, line in enumerate(lines[1:], start=2):
        key, _, rest = line.partition(": ")
        try:
            if key.startswith("stage "):
                stages.append(_parse_stage(rest))
            elif key == "term":
                terms.append(_parse_term(rest))
            elif key == "note":
                notes.append(json.loads(rest))
            else:
                values[key] = json.loads(rest)
        except (ValueError, TypeError, KeyError):
            raise PlanError(f"line {number} of the plan does not parse: {line!r}") from None
    if isinstance(links := values.get("faster_links"), list):
        values["faster_links"] = tuple(links)
    try:
        return Plan(stages=tuple(stages), terms=tuple(terms), notes=tuple(notes), **values)  # type: ignore[arg-type]
    except TypeError as error:
        raise PlanError(f"the plan lacks a line or has one too many: {error}") from None


def _parse_stage(text: str) -> Stage:
    values: dict[str, object] = {}
    for pair in text.split():
        key, _, value = pair.partition("=")
        values[key] = _parse_ranges(value) if key in ("layers", "devices") else json.loads(value)
        kind = bool if key == "recompute" else tuple if key in ("layers", "devices") else int | float
        if not isinstance(values[key], kind) or isinstance(values[key], bool) != (kind is bool):
            raise ValueError(key)
    return Stage(**values)  # type: ignore[arg-type]


def _parse_term(text: str) -> Term:
    values = dict(pair.split("=") for pair in text.split())
    return Term(
        Source(values["source"]),
        int(values["first_stage"]),
        int(values["last_stage"]),
        int(values["level"]),
        float(values["amount"]),
        float(values["seconds"]),
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    """0,1,2,5 -> 0-2,5."""
    parts: list[str] = []
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            first, last = numbers[start], numbers[at - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = at
    return ",".join(parts)


def _parse_ranges(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ValueError(part)
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _short(numbers: tuple[int, ...], width: int) -> str:
    text = _ranges(numbers)
    return text if len(text) <= width else text[: width - 3] + "..."
