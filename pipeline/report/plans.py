"""Pictures of plans and schedules."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pipeline.partition.plan import Plan, Source
from pipeline.report.figure import (
    BACKWARD,
    FORWARD,
    IDLE,
    LINK,
    STAGE_COLOURS,
    WEIGHTS,
    new_figure,
    plain,
    save,
)
from pipeline.schedule.actions import Kind
from pipeline.schedule.timing import Timeline


def draw_timeline(timeline: Timeline, path: Path, *, title: str = "", until_s: float | None = None) -> None:
    """Each worker's forwards and backwards over time, as figures 5.2 to 5.4."""
    workers = len(timeline.schedule.workers)
    shown_s = min(timeline.makespan_s, until_s or timeline.makespan_s)
    figure = new_figure(14, 1.3 + 0.42 * workers)
    axes = figure.subplots()
    _gantt(axes, timeline, shown_s)
    axes.set_title(title or _caption(timeline), loc="left", fontsize=11)
    save(figure, path)


def draw_plan(plan: Plan, timeline: Timeline, path: Path, *, optimizer_factor: float = 1.0) -> None:
    """A plan on one page: what bounds its rate, the start of its schedule, and memory as it fills."""
    workers = len(timeline.schedule.workers)
    figure = new_figure(14, 7.5 + 0.28 * workers)
    top, middle, bottom = figure.subplots(3, 1, height_ratios=[2.2, 1 + 0.25 * workers, 2.2])
    _terms(top, plan)
    pace_s = timeline.seconds_per_minibatch()
    shown_s = min(timeline.makespan_s, timeline.finished_s()[0] + 12 * pace_s)
    _gantt(middle, timeline, shown_s)
    middle.set_title(
        f"1F1B, simulated: {pace_s * 1e3:.2f} ms per minibatch in the long run "
        f"(predicted {plan.seconds_per_minibatch * 1e3:.2f}), idle {timeline.bubble():.0%} with start and drain",
        loc="left",
        fontsize=11,
    )
    _memory(bottom, timeline, shown_s, optimizer_factor)
    figure.suptitle(
        f"{plan.model} on {plan.topology}: {plan.config}, {plan.workers} devices, "
        f"{plan.seconds_per_minibatch * 1e3:.2f} "
        f"ms per minibatch; data parallelism {plan.against()} by the {plan.cost_model} cost model",
        x=0.01,
        ha="left",
        fontsize=13,
    )
    figure.tight_layout()
    save(figure, path)


def _caption(timeline: Timeline) -> str:
    schedule = timeline.schedule
    replicas = "-".join(map(str, schedule.replicas))
    return (
        f"{schedule.policy.value}, stages {replicas}, {schedule.in_flight[0]} in flight per input replica: "
        f"idle {timeline.bubble():.0%}"
    )


def _gantt(axes: Axes, timeline: Timeline, shown_s: float) -> None:
    schedule = timeline.schedule
    workers = len(schedule.workers)
    for worker in range(workers):
        axes.barh(worker, shown_s, 0.86, 0, color=IDLE)
    colours = {Kind.FORWARD: FORWARD, Kind.BACKWARD: BACKWARD, Kind.WEIGHTS: WEIGHTS}
    for span in timeline.spans:
        if span.start_s >= shown_s:
            continue
        length = min(span.end_s, shown_s) - span.start_s
        axes.barh(
            span.worker,
            length,
            0.86,
            span.start_s,
            color=colours[span.action.kind],
            edgecolor="white",
            linewidth=0.6,
        )
        # About 170 digits fit into the width of the picture.
        text = str(span.action.minibatch)
        if length > shown_s * len(text) / 170:
            axes.text(
                span.start_s + length / 2,
                span.worker,
                text,
                ha="center",
                va="center",
                fontsize=7.5,
                color="white",
            )
    labels = []
    for worker in range(workers):
        stage = schedule.stage_of(worker)
        replica = worker - schedule.first_workers[stage] + 1
        labels.append(f"stage {stage + 1}" + (f" · {replica}" if schedule.replicas[stage] > 1 else ""))
    axes.set_yticks(range(workers), labels, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, shown_s)
    axes.set_xlabel("seconds")
    used = [kind for kind in Kind if any(span.action.kind is kind for span in timeline.spans)]
    handles = [Rectangle((0, 0), 1, 1, color=c) for c in (*(colours[kind] for kind in used), IDLE)]
    axes.legend(
        handles,
        [*("gradients of weights" if kind is Kind.WEIGHTS else kind.name.lower() for kind in used), "idle"],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    plain(axes)


def _terms(axes: Axes, plan: Plan) -> None:
    colours = {Source.COMPUTE: FORWARD, Source.WEIGHTS: "#B56576", Source.ACTIVATIONS: LINK}
    words = {
        Source.COMPUTE: "computing",
        Source.WEIGHTS: "adding up gradients",
        Source.ACTIVATIONS: "activations",
    }
    # The slowest dozen, in the order of the pipeline.
    chosen = sorted(sorted(plan.terms, key=lambda t: -t.seconds)[:14], key=plan.terms.index)
    for x, term in enumerate(chosen):
        axes.bar(x, term.seconds * 1e3, 0.75, color=colours[term.source])
    labels = []
    for term in chosen:
        if term.source is Source.ACTIVATIONS:
            label = f"{term.first_stage}→{term.last_stage}"
        elif term.first_stage == term.last_stage:
            label = str(term.first_stage)
        else:
            label = f"{term.first_stage}–{term.last_stage}"
        labels.append(label + (f"\nlevel {term.level}" if term.level else ""))
    axes.set_xticks(range(len(chosen)), labels, fontsize=9)
    axes.axhline(plan.seconds_per_minibatch * 1e3, color="#444444", linewidth=1, linestyle="--")
    axes.set_xlabel("stage, or cut between stages", fontsize=9)
    axes.set_ylabel("ms per minibatch")
    axes.set_title("What bounds the rate", loc="left", fontsize=11)
    used = [s for s in Source if any(t.source is s for t in chosen)]
    axes.legend(
        [Rectangle((0, 0), 1, 1, color=colours[s]) for s in used],
        [words[s] for s in used],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    plain(axes)


def _memory(axes: Axes, timeline: Timeline, shown_s: float, optimizer_factor: float) -> None:
    schedule = timeline.schedule
    for stage in range(schedule.stages):
        worker = schedule.first_workers[stage]
        steps = [s for s in timeline.memory(worker, optimizer_factor) if s[0] <= shown_s]
        times = [when for when, _ in steps] + [shown_s]
        sizes = [size / 1e9 for _, size in steps] + [steps[-1][1] / 1e9]
        name = f"stage {stage + 1}" + (" (first replica)" if schedule.replicas[stage] > 1 else "")
        cycle, colour = divmod(stage, len(STAGE_COLOURS))
        style = ("-", "--", ":")[cycle % 3]
        axes.step(times, sizes, where="post", label=name, color=STAGE_COLOURS[colour], linestyle=style)
    axes.set_xlim(0, shown_s)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("memory, GB")
    axes.set_title("Weights, versions, activations, gradients and optimizer state", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    axes.grid(alpha=0.25)
    plain(axes)
