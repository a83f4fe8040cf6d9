"""iBatch: speed of the exact optimum, and the makespans of table 6.3's four ways over a range of links.

    python benchmarks/bench_pipeline_ibatch.py [--quick] [--out FOLDER]

The recorded profiles are read from ../shared/data/profiles; without them only the speed is measured.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ibatch_baselines as baselines
import numpy as np
from measuring import computer, versions

from pipeline.ibatch.batches import batches
from pipeline.profile.layers import read

PROFILES = Path(__file__).resolve().parents[2] / "shared" / "data" / "profiles"
STARTUP_S = 1e-3
GREEDY = "paper's greedy"
MODELS = ("vgg16", "alexnet", "resnet18", "gnmt")


def main() -> None:
    """Print both tables; draw pictures into --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and links")
    parser.add_argument("--out", type=Path, help="folder for pictures")
    options = parser.parse_args()
    print(f"{computer()}; {versions('Python', 'numpy', 'numba')}")
    speed(20 if options.quick else 200)
    if PROFILES.exists():
        makespans(9 if options.quick else 25, options.out)
    else:
        print(f"skipped the recorded profiles: {PROFILES} is not here")


def speed(repeats: int) -> None:
    """Milliseconds per call, compiled, the best of many; the harder of two start-up times."""
    print(f"\nexact optimum, best of {repeats}")
    print(f"{'layers':>7} {'ms':>8} {'limit ms':>9}")
    rng = np.random.default_rng(0)
    for layers, limit in ((150, 0.1), (1_000, 1.0), (10_000, 5.0)):
        transfer, forward = rng.exponential(1e-3, layers), rng.exponential(1e-3, layers)
        worst = 0.0
        for startup in (1e-4, 1e-2):
            batches(startup, transfer, forward)
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                batches(startup, transfer, forward)
                times.append(time.perf_counter() - start)
            worst = max(worst, min(times))
        print(f"{layers:>7} {worst * 1e3:>8.4f} {limit:>9.1f}")


def makespans(points: int, out: Path | None) -> None:
    """Pull and forward of each model over links from 0.1 to 100 Gbit/s, relative to the optimum."""
    bandwidths = np.geomspace(1.25e7, 1.25e10, points)
    print(
        f"\npull and forward relative to the optimum, start-up {STARTUP_S * 1e3:g} ms; worst over {points} links"
    )
    print(f"{'model':<9} {'default':>8} {'by layer':>9} {'greedy':>8} {'greedy undefined':>17}")
    for name in MODELS:
        profile = read(PROFILES / f"{name}.json")
        # Pulls only for what has weights; layers without join the one before them.
        weights, forward = with_weights(profile.layers)
        curves: dict[str, list[float]] = {
            "ours": [],
            "default": [],
            "layer by layer": [],
            GREEDY: [],
        }
        undefined = 0
        for bandwidth in bandwidths:
            transfer = weights / bandwidth
            curves["ours"].append(batches(STARTUP_S, transfer, forward).makespan_s)
            curves["default"].append(baselines.default(STARTUP_S, transfer, forward).makespan_s)
            curves["layer by layer"].append(baselines.layer_by_layer(STARTUP_S, transfer, forward).makespan_s)
            greedy = baselines.paper(STARTUP_S, transfer, forward)
            undefined += greedy is None
            curves[GREEDY].append(np.nan if greedy is None else greedy.makespan_s)
        best = np.array(curves["ours"])
        worst = {key: float(np.nanmax(np.array(values) / best)) for key, values in curves.items()}
        shown = f"{worst['default']:>8.2f} {worst['layer by layer']:>9.2f} {worst[GREEDY]:>8.2f}"
        print(f"{name:<9} {shown} {undefined:>10} of {points}")
        if out is not None:
            draw(name, curves, bandwidths, weights, forward, out)


def with_weights(layers) -> tuple[np.ndarray, np.ndarray]:
    """(parameter bytes, forward seconds) of layers with weights; the others' seconds join the one before."""
    weights: list[float] = []
    forward: list[float] = []
    for layer in layers:
        if layer.parameter_bytes > 0 or not weights:
            weights.append(layer.parameter_bytes)
            forward.append(layer.forward_s)
        else:
            forward[-1] += layer.forward_s
    return np.array(weights), np.array(forward)


def draw(name, curves, bandwidths, weights, forward, out: Path) -> None:
    """The curves, and the batches at 10 Gbit/s."""
    from ibatch_figures import draw_batching, draw_makespans

    out.mkdir(parents=True, exist_ok=True)
    draw_makespans(curves, bandwidths, out / f"ibatch_{name}.png", f"{name}, {STARTUP_S * 1e3:g} ms per pull")
    transfer = weights / 1.25e9
    found = {
        "default": baselines.default(STARTUP_S, transfer, forward),
        "layer by layer": baselines.layer_by_layer(STARTUP_S, transfer, forward),
        "ours": batches(STARTUP_S, transfer, forward),
    }
    draw_batching(STARTUP_S, transfer, forward, found, out / f"ibatch_{name}_batches.png")


if __name__ == "__main__":
    main()
