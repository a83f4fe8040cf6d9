"""All workers of a pipeline in one process, one after the other: the same code on the same lists, so the same bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from pipeline.run.links import LinkError, LocalLink, Receiver, Sender, Traffic
from pipeline.run.routes import Route, routes
from pipeline.run.worker import Ends, Worker
from pipeline.schedule.actions import Schedule

MakeWorker = Callable[[int, Ends], Worker]
OnAction = Callable[[Worker], None]


def run_sequential(
    schedule: Schedule, make_worker: MakeWorker, on_action: OnAction | None = None
) -> list[Worker]:
    """Run every worker's list to its end; returns the workers. Raises LinkError if they wait for each other."""
    links = {route: LocalLink() for route in routes(schedule)}
    workers = [make_worker(number, ends_of(number, links, links)) for number in range(len(schedule.workers))]
    progress = True
    while progress:
        progress = False
        for worker in workers:
            while not worker.is_done and _is_ready(worker):
                worker.step()
                progress = True
                if on_action is not None:
                    on_action(worker)
    if any(not worker.is_done for worker in workers):
        raise LinkError("the schedule gets stuck: workers wait for each other")
    return workers


def ends_of(number: int, sending: Mapping[Route, Sender], receiving: Mapping[Route, Receiver]) -> Ends:
    """The ends of one worker, among links by route."""

    def towards(traffic: Traffic) -> dict[int, Sender]:
        return {r.target: link for r, link in sending.items() if r.source == number and r.traffic is traffic}

    def out_of(traffic: Traffic) -> dict[int, Receiver]:
        return {
            r.source: link for r, link in receiving.items() if r.target == number and r.traffic is traffic
        }

    return Ends(
        forward_from=out_of(Traffic.ACTIVATIONS),
        forward_to=towards(Traffic.ACTIVATIONS),
        backward_from=out_of(Traffic.GRADIENTS),
        backward_to=towards(Traffic.GRADIENTS),
        sums_from=out_of(Traffic.SUMS),
        sums_to=towards(Traffic.SUMS),
    )


def _is_ready(worker: Worker) -> bool:
    wanted = Counter(map(id, worker.needs()))
    return all(receiver.waiting >= wanted[id(receiver)] for receiver in worker.needs())  # type: ignore[attr-defined]
