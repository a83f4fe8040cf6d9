"""A step of a recommender with large embeddings, read by row: against DistributedDataParallel's sparse gradients.

Two processes on this machine, one thread of computing each; 1,000,000 users and 100,000 items of 64 numbers; SGD, and
Adam on the rows that a step reaches (torch: SparseAdam). Everything is measured in turn for several rounds; a time
is the median of the rounds' medians, a ratio the median of the rounds' ratios.
`python benchmarks/bench_embedding.py [--quick] [--batches 1024,8192] [--rounds 3] [--skewed] [--dense]`.

The limit: the model's own step in one process on its own share (no exchange at all), while the other does the same.
"""

import argparse
import secrets
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import child_machines  # first: it sets the environment that the processes begin with
import embedding_peer
import torch
from child_machines import WARM_UP, WORLD, Pair, Sample, sample, serve_machine, train
from embedding_peer import Shop, offers
from measuring import computer, free_port

from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.process.spec import RunSpec

LIMIT = 0.7  # of DistributedDataParallel's step, which is aimed at
TABLES = {"users": 1_000_000, "items": 100_000, "width": 64}
QUICK_TABLES = {"users": 100_000, "items": 10_000, "width": 64}
STEPS, QUICK_STEPS = 24, 12


def data_of(shop: Shop) -> Any:
    """The items of both processes; the engine deals them out."""
    parts = [offers(shop, rank) for rank in range(WORLD)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)), None


def run_engine(machines: Pair, shop: Shop, steps: int, *, deterministic: bool) -> Sample:
    """As bench_ddp measures."""
    values = child_machines.job_values(
        steps,
        model={"batch_size": WORLD * shop.batch, "loss": "bce_with_logits"},
        optimizer={"kind": shop.kind, "learning_rate": 0.01 if shop.kind == "sgd" else 0.001},
        deterministic=deterministic,
        partitions=WORLD,
    )
    app = TorchModule(build=shop.build, dataset=partial(data_of, shop))
    return sample(*train(machines, RunSpec(secrets.token_hex(4), from_values(values), app)))


def measure(peers: Pair, shop: Shop, rounds: int, steps: int, *, with_dense: bool) -> dict[str, list[Sample]]:
    """Every variant in turn, so many rounds."""
    variants: dict[str, Callable[[], Sample]] = {
        "no exchange (limit)": partial(child_machines.run_ddp, peers, shop, "alone", steps),
        "DDP, sparse gradients": partial(child_machines.run_ddp, peers, shop, "sparse", steps),
    }
    if with_dense:
        variants["DDP, dense gradients"] = partial(child_machines.run_ddp, peers, shop, "dense", WARM_UP + 4)
    found: dict[str, list[Sample]] = {}
    for _ in range(rounds):
        for label, run in variants.items():
            found.setdefault(label, []).append(run())
        machines = Pair(serve_machine)
        for deterministic in (True, False):
            label = f"engine, {'deterministic' if deterministic else 'not deterministic'}"
            sample = run_engine(machines, shop, steps, deterministic=deterministic)
            found.setdefault(label, []).append(sample)
        machines.end()
    return found


def report(shop: Shop, found: dict[str, list[Sample]]) -> None:
    """Print the table of a shop; ratios are medians of the rounds' ratios."""

    def ratio(label: str, to: str, of: str = "seconds") -> float:
        pairs = zip(found[label], found[to], strict=True)
        return statistics.median(getattr(a, of) / getattr(b, of) for a, b in pairs)

    skew = "as by Zipf's law" if shop.is_skewed else "evenly"
    print(f"\n{shop.kind}, {shop.batch} items a process, rows looked up {skew}")
    print(f"  {'':32}{'ms':>8}{'/ DDP sparse':>14}{'/ limit':>9}{'CPU ms':>9}{'/ DDP':>8}")
    for label, samples in found.items():
        print(
            f"  {label:32}{statistics.median(s.seconds for s in samples) * 1e3:8.1f}"
            f"{ratio(label, 'DDP, sparse gradients'):14.2f}{ratio(label, 'no exchange (limit)'):9.2f}"
            f"{statistics.median(s.cpu_s for s in samples) * 1e3:9.1f}"
            f"{ratio(label, 'DDP, sparse gradients', 'cpu_s'):8.2f}",
            flush=True,
        )
    reached = ratio("engine, deterministic", "DDP, sparse gradients")
    verdict = "reached" if reached <= LIMIT else "NOT reached"
    print(f"  aimed at: {LIMIT:.2f} of DDP's step or less; {verdict}: {reached:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller tables, one round: under a minute")
    parser.add_argument("--batches", default=None, help="items of a step and process, such as 1024,8192")
    parser.add_argument("--kinds", default="sgd,adam")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--skewed", action="store_true", help="rows are looked up as by Zipf's law, not evenly"
    )
    parser.add_argument("--dense", action="store_true", help="DDP with dense gradients of the tables as well")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    batches = arguments.batches or ("1024" if arguments.quick else "1024,8192")
    tables = QUICK_TABLES if arguments.quick else TABLES
    print(
        f"{computer('torch', 'python')}; {WORLD} processes, one thread each; {rounds} rounds; "
        f"{tables['users']:,} x {tables['width']} and {tables['items']:,} x {tables['width']}",
        flush=True,
    )
    steps = WARM_UP + (QUICK_STEPS if arguments.quick else STEPS)
    peers = Pair(embedding_peer.serve, WORLD, free_port())
    try:
        for kind in arguments.kinds.split(","):
            for batch in map(int, batches.split(",")):
                shop = Shop(**tables, batch=batch, examples=16 * batch, kind=kind, is_skewed=arguments.skewed)
                report(shop, measure(peers, shop, rounds, steps, with_dense=arguments.dense))
    finally:
        peers.end()


if __name__ == "__main__":
    main()
