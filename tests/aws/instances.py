"""What instances of EC2 do once they run, on this machine: each is a Ray node that joins the head's cluster."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agileml.aws.boot import Installation, InstanceIdentity, node_command, watchdog_command
from agileml.cluster.processes import kill
from agileml.cluster.watchdog import marked, processes_marked
from bidbrain.aws.stack.names import TAG_PART, TAG_STACK
from tests.cluster.started import Started

LOOK_S = 0.1
# What nodes that share one machine must say beyond what one on EC2 says.
SHARED = ("--num-cpus=1", "--dashboard-agent-listen-port=0", "--disable-usage-stats")


class Instances:
    """Looks at the instances of a stack. One that runs boots: watchdog and Ray with the very words of `boot`, the
    system's shutdown excepted. One that was terminated loses all of its processes at once."""

    def __init__(
        self,
        ec2: Any,
        cluster: Started,
        place: Installation,
        stack: str,
        orphan_after_s: int,
        asleep: Collection[str],
    ) -> None:
        """place: has the files by which instances join. asleep: ids of instances that cost money and do not boot."""
        self._ec2, self._cluster, self._after_s = ec2, cluster, orphan_after_s
        self._place, self._ip = place, cluster.address.rpartition(":")[0]
        self._asleep = frozenset(asleep)
        self._filters = [{"Name": f"tag:{TAG_STACK}", "Values": [stack]}]
        self._shells: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.booted: list[str] = []
        self.orphaned: list[str] = []
        self.problem: BaseException | None = None

    def run(self, stopping: threading.Event) -> None:
        """Until told to stop."""
        try:
            while not stopping.wait(LOOK_S):
                self._look()
        except BaseException as error:
            self.problem = error

    def end_all(self) -> None:
        """What is left ends."""
        for machine_id in list(self._shells):
            self._end(machine_id)

    def there(self) -> list[str]:
        """Machines with processes, whatever EC2 says of them."""
        return list(self._shells)

    def running(self) -> list[dict[str, Any]]:
        """Those that cost money, the head excepted."""
        found = self._ec2.describe_instances(Filters=self._filters)
        every = [each for r in found["Reservations"] for each in r["Instances"]]
        return [
            each
            for each in every
            if each["State"]["Name"] in ("pending", "running") and TAG_PART not in _keys(each, "head")
        ]

    def _look(self) -> None:
        there = {each["InstanceId"]: each for each in self.running()}
        for machine_id in set(self._shells) - set(there):
            self._end(machine_id)
        for machine_id, shells in self._shells.items():
            if shells[1].poll() is not None:  # its watchdog shut it down, which terminates it
                self.orphaned.append(machine_id)
                self._ec2.terminate_instances(InstanceIds=[machine_id])
        for machine_id in set(there) - set(self._shells) - self._asleep:
            self._boot(machine_id, there[machine_id].get("InstanceLifecycle") == "spot")

    def _boot(self, machine_id: str, is_spot: bool) -> None:
        me, gcs = InstanceIdentity(machine_id, self._ip, is_spot), self._cluster.address
        ray = [*replaced(node_command(self._place, me, self._ip), {"--address": gcs}), *SHARED]
        said = watchdog_command(self._place, self._ip, self._after_s)
        heads = replaced(said[5:], {"--tls-head": gcs})
        environment = {**self._cluster.environment, **marked(machine_id)}
        shells = [self._shell(ray, environment, f"{machine_id}.ray")]
        mine = [f"--machine={machine_id}", f"--raylet={shells[0].pid}", f"--after={self._after_s}"]
        self._wait_for_ray(shells[0], self._cluster.folder / f"{machine_id}.ray")
        shells.append(self._shell([*said[:3], *mine, *heads], environment, f"{machine_id}.watchdog"))
        self._shells[machine_id] = shells
        self.booted.append(machine_id)

    @staticmethod
    def _wait_for_ray(shell: subprocess.Popen[bytes], log: Path) -> None:
        """One after the other: nodes of one machine that start together want the same ports."""
        while "Ray runtime started" not in log.read_text():
            assert shell.poll() is None, log.read_text()
            time.sleep(0.05)

    def _shell(self, command: list[str], environment: dict[str, str], name: str) -> subprocess.Popen[bytes]:
        """In a folder of its own: the code of a job comes with the job."""
        with (self._cluster.folder / name).open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self._cluster.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _end(self, machine_id: str) -> None:
        while left := processes_marked(machine_id):
            kill(left)
        for shell in self._shells.pop(machine_id):
            shell.wait()


def _keys(instance: dict[str, Any], value: str) -> set[str]:
    return {tag["Key"] for tag in instance.get("Tags", ()) if tag["Value"] == value}


def replaced(command: list[str], values: dict[str, str]) -> list[str]:
    """A command with other values of some options."""
    return [
        f"{name}={values[name]}" if (name := word.partition("=")[0]) in values else word for word in command
    ]


@contextmanager
def instances_of(
    ec2: Any,
    cluster: Started,
    place: Installation,
    stack: str,
    orphan_after_s: int,
    asleep: Collection[str] = (),
) -> Iterator[Instances]:
    """While it is open, instances of the stack are nodes of the cluster."""
    instances = Instances(ec2, cluster, place, stack, orphan_after_s, asleep)
    stopping = threading.Event()
    thread = threading.Thread(target=instances.run, args=(stopping,), name="instances", daemon=True)
    thread.start()
    try:
        yield instances
    finally:
        stopping.set()
        thread.join()
        instances.end_all()
