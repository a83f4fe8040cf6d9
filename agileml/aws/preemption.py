"""On a node of EC2: the interruption notice of the metadata service, passed on to Ray as a drain with its deadline.

    python -m agileml.aws.preemption --address 10.0.0.5:6379

The head hears of interruptions from its queue as well; whichever comes first counts. A rebalance recommendation is no
interruption: it is the head's business alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bidbrain.aws.notices import ImdsNotices
from bidbrain.live.cloud import Alert, InstanceNotice

LOOK_S = 5.0  # as AWS recommends


def drain_command(address: str, notice: InstanceNotice, now_s: float) -> list[str]:
    """`ray drain-node` for the node that it runs on."""
    left_s = max(1, round(notice.deadline_s - now_s))
    return [
        *(str(Path(sys.executable).with_name("ray")), "drain-node", f"--address={address}"),
        *("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot interruption"),
        f"--deadline-remaining-seconds={left_s}",
    ]


def watch(
    source: ImdsNotices,
    address: str,
    run: Callable[[list[str]], bool],
    sleep: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.time,
) -> InstanceNotice:
    """Look until an interruption has been told to Ray, which is repeated until it takes it; returns the notice."""
    while True:
        try:
            found = [each for each in source.notices() if each.alert is Alert.TERMINATE]
        except OSError as error:  # asked again: the service may be restarting
            print(f"the metadata service: {error}", flush=True)
            found = []
        if found and run(drain_command(address, found[0], now_s())):
            return found[0]
        sleep(LOOK_S)


def _run(command: list[str]) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def main(arguments: list[str] | None = None) -> None:
    """The command line of the watcher."""
    parser = argparse.ArgumentParser(description="Tell Ray of this machine's interruption.")
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    options = parser.parse_args(arguments)
    print(watch(ImdsNotices(), options.address, _run), flush=True)
    while True:  # told: nothing is left to do until the machine goes
        time.sleep(3600)


if __name__ == "__main__":
    main()
