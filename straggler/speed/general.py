"""Trains the general net of `narx` on made traces, and writes it.

    python -m straggler.speed.general [FILE]

`FILE`: by default the one that `narx` reads. The traces have seeds that no test and no benchmark judges a net by.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from straggler.speed.narx import GENERAL_FILE, HOLD_NOTHING, Net, examples, fresh_weights, log_row, train
from straggler.speed.traces import bursts, drift, regimes

SEEDS = (10**6, 10**6 + 1)
STARTS = 12


def general_net() -> Net:
    """How CPU and memory change a speed in general, as a net: from random weights, on a trace of each kind and seed."""
    inputs, changes = [], []
    for make in (regimes, bursts, drift):
        for seed in SEEDS:
            rows = np.array([log_row(speed, resources) for speed, resources in make(seed)])
            found = examples(rows, float(rows[:, 0].mean()))
            inputs.append(found[0])
            changes.append(found[1])
    return train(
        fresh_weights(0, STARTS),
        np.concatenate(inputs),
        np.concatenate(changes),
        HOLD_NOTHING,
        most_steps=400,
    )


def main(path: Path) -> None:
    """Write the weights as a JSON list."""
    weights = [round(float(weight), 4) for weight in general_net().weights]
    path.write_text(json.dumps({"weights": weights}) + "\n", encoding="utf-8")
    print(f"{len(weights)} weights in {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else GENERAL_FILE)
