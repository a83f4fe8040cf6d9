"""Replicas of a pipeline's stage in the engine, against what the planner expects of a clock.

    python benchmarks/bench_pipeline_replicas.py [--quick]

Layers take virtual time: a stage waits until an absolute deadline, so machines that are threads of one process compute
beside each other. Messages are real, through real sockets. A figure is the expected seconds of a clock over the median
of the measured ones; the links cost what they cost here and count as nothing in what is expected.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from virtual_pipeline import Layer, Model, VirtualLayers, expected_s

from agileml.config.hardware import Hardware
from agileml.config.job import from_values
from agileml.core.protocol.inputs import NodeUp
from agileml.core.protocol.job import PipelineRules
from agileml.core.stage.pipeline_stages import cut_stages
from agileml.events.run import ClockDone
from agileml.events.terms import Tier
from agileml.net.keys import KeyPair
from agileml.process.head import Head
from agileml.process.machine import Machine
from agileml.process.record_store import FileStore
from agileml.process.run_transport import socket_folder
from agileml.process.spec import RunSpec

SIZES = (4096, 4096, 4096, 1 << 18)  # parameters of the layers: the last one has most
UNITS = 16
MODEL = Model(
    "", tuple(Layer(f"layer {n}", 0.010 * UNITS, size, 4096 * UNITS) for n, size in enumerate(SIZES)), UNITS
)
HOST = "127.0.0.1"
WARM_UP = 5  # clocks
AIM = 0.85  # of what is expected, for three replicas and a stage of one


def measured_s(mode: str, replicas: Sequence[int], clocks: int) -> float:
    """The median seconds of a clock."""
    values = {
        "application": "virtual_pipeline:VirtualLayers",  # named, not used: the application is given
        "clocks": clocks,
        "slices": UNITS,
        "machines": {"reliable": 1, "transient": sum(replicas), "max": 8},
        "pipeline": {"mode": mode, "replicas": list(replicas)},
    }
    spec = RunSpec(secrets.token_hex(4), from_values(values), VirtualLayers(MODEL))
    with tempfile.TemporaryDirectory() as folder:
        seconds = clocks_of(spec.measured(spec.build()), Path(folder))
    return statistics.median(seconds[WARM_UP:])


def clocks_of(spec: RunSpec, folder: Path) -> list[float]:
    """The seconds of each clock of a run whose machines are threads of this process."""
    keys, wanted = KeyPair.generate(), spec.config.machines
    tiers = [Tier.RELIABLE] * wanted.reliable + [Tier.TRANSIENT] * wanted.transient
    head = Head(spec, len(tiers), HOST, keys, FileStore(folder))
    head.start()
    machines = []
    for number, tier in enumerate(tiers):
        machine = Machine(f"m{number}", spec, spec.build(), HOST, keys, head.address, Hardware(1, 1.0))
        machines.append(machine)
        machine.start()
        head.register(machine.address, NodeUp(machine.name, tier, True))
    seconds: list[float] = []
    try:
        while True:
            state = head.state()
            done = [each.event for each in state.events if isinstance(each.event, ClockDone)]
            seconds += [clock.seconds for clock in done if clock.seconds is not None]
            if state.halted is not None:
                raise SystemExit(str(state.halted))
            if state.finished is not None:
                return seconds
            time.sleep(0.05)
    finally:
        for machine in machines:
            machine.stop()
        head.stop()
        shutil.rmtree(socket_folder(spec.run), ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="20 clocks of each instead of 60")
    clocks = 20 if parser.parse_args().quick else 60
    print("| mode | replicas | expected ms | measured ms | of what is expected |")
    print("| --- | --- | --- | --- | --- |")
    missed = []
    for mode in ("flush", "stash"):
        for replicas in ((1, 1), (3, 1), (2, 2), (4,)):
            rules = PipelineRules(MODEL.unit_s, replicas=replicas)
            cut = cut_stages(rules, sum(replicas), UNITS)
            wanted_s = expected_s(MODEL, cut, flushes=mode == "flush")
            found_s = measured_s(mode, replicas, clocks)
            shape = "-".join(map(str, replicas))
            row = f"| {mode} | {shape} | {1e3 * wanted_s:.0f} | {1e3 * found_s:.0f} | {wanted_s / found_s:.2f} |"
            print(row, flush=True)
            if replicas == (3, 1) and wanted_s < AIM * found_s:
                missed.append(f"{mode} {shape}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if missed:
        raise SystemExit(f"below {AIM:g} of what is expected: {', '.join(missed)}")


if __name__ == "__main__":
    main()
