"""Break the rules of the protocol one at a time: each must be caught by the model.

`python -m tests.model.mutants [NAME ...]` runs schedules with one rule broken, in the mode where the rule matters,
until one fails. The table says which seed it was.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from tests.model.mutants.catalogue import MUTANTS
from tests.model.mutants.trial import SEEDS, try_named


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of names; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most so many schedules for each")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if not arguments.names or any(name in m.name for name in arguments.names)]
    escaped = []
    print(f"{'mutant':50} {'mode':9}  {'caught':>12}  how")
    # A mutant has a process of its own: nothing that was computed with one rule broken is left for the next.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, max_tasks_per_child=1) as pool:
        names = [mutant.name for mutant in chosen]
        for mutant, verdict in zip(
            chosen, pool.map(try_named, names, [arguments.seeds] * len(names)), strict=True
        ):
            caught = "no" if verdict.seed is None else f"by seed {verdict.seed}"
            how = verdict.how if verdict.seed is not None else mutant.safe or "ESCAPED: " + mutant.why
            print(f"{mutant.name:50} {mutant.mode:9}  {caught:>12}  {how.splitlines()[0][:90]}", flush=True)
            if verdict.seed is None and not mutant.safe:
                escaped.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(escaped)} escaped")
    if escaped:
        raise SystemExit(f"not caught within {arguments.seeds} seeds: {', '.join(escaped)}")


if __name__ == "__main__":
    main()
