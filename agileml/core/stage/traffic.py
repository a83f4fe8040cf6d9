"""The bytes that each machine sends and receives in a clock, from its roles (thesis 4.5).

Every worker reads P bytes of parameters and pushes k sums of G bytes each. Dense tables: P = G = W, the model's bytes;
k = 1 unless sums are taken in a fixed order, then one for each aligned subtree of its share. A machine that owns the
share o of the partitions and does (w = 1) or does not (w = 0) compute, among n workers that push K sums together,

    sends     w k (1 - o) G   its own sums to the others
            + (n - w) o P     parameters to the workers that are not itself
            + o C             its part of the cut, to the backup
    receives  w (1 - o) P     parameters of the others
            + (K - w k) o G   the others' sums
            + b C             parts of the cut, as backup of the share b

with C the bytes of a clock's share of a cut, of which none travel for what a machine owns and backs up itself. With R
reliable and T transient machines, N = R + T, dense tables, k = 1 and even shares, each way and without cuts:

    traditional (T = 0, o = 1/N)            W (1 - 1/N) + W (N - 1) / N = 2 W (N - 1) / N
    stage 1     reliable    o = 1/R         W (1 - 1/R) + W (N - 1) / R
                transient   o = 0           W
    stage 2     active      o = 1/A         W (1 - 1/A) + W (N - 1) / A, and sends C / A
                reliable    o = 0           W, and receives C / R
    stage 3     active      o = 1/A         W (1 - 1/A) + W (T - 1) / A, and sends C / A
                reliable                    0, and receives C / R

where A = active_fraction T. The thesis counts both ways together: 4 W (N - 1) / N in the traditional layout. For an
active of stage 3 with A = N / 2 it prints 4 W (N - 2) / N, but its own terms come to 4 W (N - 1) / N for serving and
2 W (N - 2) / N for working, which is what the formulas above give when all N machines work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Volume:
    """Bytes per clock: `pull`, P above, of all partitions; `push`, G, one sum for all of them; `cut`, C, of a cut."""

    pull: float
    push: float
    cut: float = 0.0


@dataclass(frozen=True)
class ClockBytes:
    """The bytes that one machine moves in a clock."""

    sent: float
    received: float

    @property
    def most(self) -> float:
        """The busier direction: a link carries as much each way."""
        return max(self.sent, self.received)


@dataclass(frozen=True)
class Roles:
    """By partition its owner and backup; by worker the number of sums that it pushes in a clock."""

    owner: Sequence[str]
    backup: Sequence[str]
    sums: Mapping[str, int]

    def nodes(self) -> list[str]:
        """All machines with a role, in a fixed order."""
        return list(dict.fromkeys([*self.owner, *self.backup, *self.sums]))


def clock_bytes(roles: Roles, volume: Volume) -> dict[str, ClockBytes]:
    """The formulas above, for every machine."""
    share = 1 / len(roles.owner)
    owned, backed = Counter(roles.owner), Counter(roles.backup)
    own_backup = Counter(a for a, b in zip(roles.owner, roles.backup, strict=True) if a == b)
    workers, sums = len(roles.sums), sum(roles.sums.values())
    found = {}
    for node in roles.nodes():
        o, k, works = owned[node] * share, roles.sums.get(node, 0), node in roles.sums
        kept = own_backup[node] * share
        sent = k * (1 - o) * volume.push + (workers - works) * o * volume.pull + (o - kept) * volume.cut
        received = works * (1 - o) * volume.pull + (sums - k) * o * volume.push
        received += (backed[node] * share - kept) * volume.cut
        found[node] = ClockBytes(sent, received)
    return found


def volume_of(roles: Roles, pulled: float, pushed: float, cut: float) -> Volume:
    """The volumes with which these roles move the given bytes between machines in a clock; 0 where none can travel."""
    total = (
        clock_bytes(roles, Volume(1.0, 0.0)),
        clock_bytes(roles, Volume(0.0, 1.0)),
        clock_bytes(roles, Volume(0.0, 0.0, 1.0)),
    )
    per_byte = [sum(load.received for load in kind.values()) for kind in total]
    found = [
        moved / each if each > 1e-12 else 0.0
        for moved, each in zip((pulled, pushed, cut), per_byte, strict=True)
    ]
    return Volume(*found)
