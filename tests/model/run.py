"""Run schedules of the model: `python -m tests.model.run --seed 17 --mode ssp`, or `--seeds 0:300`."""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter

from tests.model.schedule import make_schedule
from tests.model.simulator import Simulation

MODES = ("bsp", "sum", "ssp", "asp")


def run_one(seed: int, mode: str, faults: int | None = None) -> Simulation:
    """Run one schedule to its end; raises when an invariant does not hold."""
    return Simulation(make_schedule(seed, mode, faults)).run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:100", help="first:stop")
    parser.add_argument("--mode", choices=(*MODES, "all"), default="all")
    parser.add_argument("--faults", type=int, help="so many faults in every schedule, none of them gentle")
    arguments = parser.parse_args()
    first, stop = (int(part) for part in arguments.seeds.split(":"))
    seeds = range(first, stop) if arguments.seed is None else [arguments.seed]
    modes = MODES if arguments.mode == "all" else (arguments.mode,)
    failed = []
    for mode in modes:
        fired: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        messages, simulated_s, started_s = 0, 0.0, time.perf_counter()
        for seed in seeds:
            try:
                simulation = run_one(seed, mode, arguments.faults)
            except Exception as error:
                failed.append((mode, seed))
                if arguments.seed is not None:
                    traceback.print_exc()
                else:
                    print(f"{mode} seed {seed}: {type(error).__name__}: {str(error)[:300]}")
                continue
            fired += simulation.fired
            messages += simulation.messages
            simulated_s += simulation.now_s
            seen["lost"] += simulation.is_lost
            for note in simulation.notes:
                if note.kind == "view":
                    seen[f"stage {note.fields['stage']}"] += 1
                    seen["rollbacks"] += note.fields["rolled_back"]
                    seen["clocks redone"] += note.fields["redone"]
        seconds = time.perf_counter() - started_s
        print(
            f"{mode}: {len(seeds) / seconds:.1f} schedules/s, {messages} messages, {simulated_s:.0f} s simulated; "
            f"fired {dict(sorted(fired.items()))}; {dict(sorted(seen.items()))}"
        )
    if failed:
        raise SystemExit(f"failed: {failed}")


if __name__ == "__main__":
    main()
