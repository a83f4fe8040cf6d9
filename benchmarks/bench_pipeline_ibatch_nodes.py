"""iBatch's speedups over one node (Wang et al., figure 5), from the networks' architectures.

    python benchmarks/bench_pipeline_ibatch_nodes.py [--quick] [--json]

No layer profile is printed. Ours: parameters exactly; a layer's forward takes its multiply-adds at one rate, its
backward twice as long. All nodes share 10 Gbit/s, pull before the forward and push after the backward; a pull costs
`--startup-ms` each time. The rate is fitted to one printed figure, 22 for VGG19-22K on 30 nodes without any overlap,
for 32 items a node.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import ibatch_baselines as baselines
import numpy as np
from network_layers import NETWORKS

from pipeline.ibatch.batches import batches

LINK_BYTES_PER_S = 1.25e9
ITEMS = 32
FITTED = ("VGG19-22K", 30, 22.0)
WAYS = {
    "default": baselines.default,
    "layer by layer": baselines.layer_by_layer,
    "iBatch": batches,
}


@dataclass(frozen=True)
class Network:
    """Layers in the order of the forward."""

    parameter_bytes: np.ndarray
    multiply_adds: np.ndarray

    @classmethod
    def named(cls, name: str) -> Network:
        layers = list(NETWORKS[name]())
        sizes = np.array([4.0 * layer.parameters for layer in layers])
        return cls(sizes, np.array([float(layer.multiply_adds) for layer in layers]))

    def forward_s(self, rate: float) -> np.ndarray:
        """At `rate` multiply-adds a second."""
        return self.multiply_adds * ITEMS / rate

    def transfer_s(self, nodes: int) -> np.ndarray:
        """Of each layer, one way, where so many nodes share the link."""
        return self.parameter_bytes * nodes / LINK_BYTES_PER_S

    def speedup(self, way: str, nodes: int, rate: float, startup_s: float) -> float:
        """Iterations of all nodes over those of one, which has nothing to send."""
        forward_s, transfer_s = self.forward_s(rate), self.transfer_s(nodes)
        whole_s = WAYS[way](startup_s, transfer_s, forward_s).makespan_s
        iteration_s = whole_s + 2 * forward_s.sum() + startup_s + transfer_s.sum()
        return float(nodes * 3 * forward_s.sum() / iteration_s)


def fitted_rate(startup_s: float) -> float:
    """Multiply-adds a second of a node at which the printed figure of FITTED comes out."""
    name, nodes, printed = FITTED
    network = Network.named(name)
    exchange_s = 2 * (startup_s + network.transfer_s(nodes).sum())
    computing_s = exchange_s / (nodes / printed - 1)
    return float(3 * network.multiply_adds.sum() * ITEMS / computing_s)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one number of nodes")
    parser.add_argument("--startup-ms", type=float, default=10.0, help="of a pull or a push")
    parser.add_argument("--json", action="store_true", help="the figures as JSON as well, in the last line")
    arguments = parser.parse_args()
    startup_s = arguments.startup_ms / 1e3
    rate = fitted_rate(startup_s)
    counts = (30,) if arguments.quick else (2, 6, 12, 18, 24, 30, 42, 54, 66, 72)
    print(f"a node computes {rate / 1e9:.1f} G multiply-adds a second; start-up {arguments.startup_ms:g} ms")
    print(
        f"{'network':<14}{'M parameters':>13}{'G multiply-adds':>16}{'nodes':>6}"
        + "".join(f"{w:>16}" for w in WAYS)
    )
    figures = {}
    for name in NETWORKS:
        network = Network.named(name)
        millions = float(network.parameter_bytes.sum()) / 4e6
        found = {
            nodes: {way: network.speedup(way, nodes, rate, startup_s) for way in WAYS} for nodes in counts
        }
        for nodes, row in found.items():
            cells = "".join(f"{value:>16.1f}" for value in row.values())
            print(f"{name:<14}{millions:>13.1f}{network.multiply_adds.sum() / 1e9:>16.2f}{nodes:>6}{cells}")
        figures[name] = {"parameters_m": millions, "speedups": found}
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
