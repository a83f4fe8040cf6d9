"""Machine types: vCPUs, memory, GPUs and dated on-demand prices (machines.csv beside this file)."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from bidbrain.instants import parse_instant
from bidbrain.money import micro_usd

TABLE_REGION = "us-east-1"  # of the prices in machines.csv


@dataclass(frozen=True)
class MachineType:
    """One row: the on-demand price (micro-dollars/h, us-east-1, Linux) from an instant on, and the hardware."""

    name: str
    from_s: int
    on_demand: int
    vcpus: int
    memory_gib: float
    gpus: int
    source: str


class UnknownTypeError(ValueError):
    """A machine type has no known price or count of vCPUs; the message is one sentence.

    problem: the sentence without the options that would help; hint: types of a similar name.
    """

    def __init__(self, problem: str, cure: str, hint: str = "") -> None:
        self.problem, self.hint = problem, hint
        super().__init__(f"{problem} (say {cure}){hint}")


@cache
def table() -> tuple[MachineType, ...]:
    """All rows of machines.csv, in their order."""
    text = files("bidbrain").joinpath("machines.csv").read_text("utf-8")
    return tuple(
        MachineType(
            row["instance_type"],
            parse_instant(row["from"]),
            micro_usd(row["usd_per_h"]),
            int(row["vcpus"]),
            float(row["memory_gib"]),
            int(row["gpus"]),
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def find_type(name: str, at_s: int) -> MachineType:
    """The row of a type at an instant (its first row, if that is later). Raises UnknownTypeError."""
    rows = [row for row in table() if row.name == name]
    if not rows:
        close = difflib.get_close_matches(name, sorted({row.name for row in table()}), 4)
        hint = f"; close to it: {', '.join(close)}" if close else ""
        raise UnknownTypeError(
            f"no on-demand price is known for the machine type {name!r}",
            f"--on-demand {name}=USD and --vcpus {name}=N",
            hint,
        )
    past = [row for row in rows if row.from_s <= at_s]
    return max(past, key=lambda row: row.from_s) if past else min(rows, key=lambda row: row.from_s)


def types_at(
    names: list[str], at_s: int, on_demand: Mapping[str, int], vcpus: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """{type: (on-demand micro-dollars/h, vCPUs)} at an instant; the user's figures go before the table's."""
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        if name in on_demand and name in vcpus:
            found[name] = (on_demand[name], vcpus[name])
        elif name in on_demand and not any(row.name == name for row in table()):
            raise UnknownTypeError(f"how many vCPUs {name!r} has is not known", f"--vcpus {name}=N")
        else:
            row = find_type(name, at_s)
            found[name] = (on_demand.get(name, row.on_demand), vcpus.get(name, row.vcpus))
    return found
