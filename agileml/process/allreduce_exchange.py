"""All-reduce in a machine's process: carries out its node's commands. Only runs that need torch import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agileml.application import InputError
from agileml.config.job import JobConfig
from agileml.core.protocol.commands import (
    Abandon,
    Broken,
    Form,
    Gather,
    Gathered,
    Introduce,
    Met,
    Reduce,
    Reduced,
)
from agileml.core.protocol.messages import Failure
from agileml.net.events import Address

if TYPE_CHECKING:
    from agileml.net.allreduce import AllReduce

LOOPBACK = "127.0.0.1"

Command = Form | Introduce | Reduce | Gather | Abandon


class AllReduceExchange:
    """Forms groups and adds gradients up. It refuses a group that would send gradients without encryption through a
    network that the config does not call trusted.

    Machines at one address listen on the loopback, where only their host reaches them.
    """

    def __init__(
        self,
        me: str,
        node_ip: str,
        config: JobConfig,
        report: Callable[[Met | Reduced | Gathered | Broken | Failure], None],
    ) -> None:
        self._me = me
        self._node_ip = node_ip
        self._is_trusted = config.trusted_network
        self._report = report
        self._groups: AllReduce | None = None
        self._size = 1  # of the group
        if config.exchange == "allreduce":
            # Import torch now: it takes a second, and later a whole group would wait.
            from agileml.net.allreduce import AllReduce
            from agileml.net.collectives import collectives

            try:
                self._groups = AllReduce(me, report, collectives(config.allreduce_backend))
            except InputError as error:
                report(Failure(str(error), ""))

    def ask(self, command: Command, peers: Mapping[str, Address]) -> int:
        """Queue a command; `peers` holds the addresses of the run's machines.

        Returns the bytes that this machine sends for it: in a ring of n machines, 2 (n - 1) / n of the summed bytes,
        and its own part to each of the others.
        """
        if self._groups is None:
            return 0  # the run is ending: this machine has reported its failure
        if isinstance(command, Form):
            self._size = len(command.group)
            self._form(self._groups, command, peers)
            return 0
        self._groups.ask(command)
        if isinstance(command, Gather):
            own = sum(array.nbytes for name, arrays in command.parts if name == self._me for array in arrays)
            return (self._size - 1) * own
        if not isinstance(command, Reduce):
            return 0
        return 2 * (self._size - 1) * sum(block.nbytes for block in command.blocks) // self._size

    def _form(self, groups: AllReduce, command: Form, peers: Mapping[str, Address]) -> None:
        others = [name for name in command.group if name != self._me]
        far = [name for name in others if name in peers and peers[name].node_ip != self._node_ip]
        if far and not self._is_trusted:
            problem = (
                f"exchange: allreduce adds up over connections without keys, and {', '.join(far)} "
                f"{'is' if len(far) == 1 else 'are'} not at this machine's address {self._node_ip}; set "
                "trusted_network: true where nobody else can reach that network, or exchange: servers"
            )
            self._report(Failure(problem, ""))
            return
        is_one_host = not far and all(name in peers for name in others)
        groups.form(command, LOOPBACK if is_one_host else self._node_ip)

    def stop(self) -> None:
        """Abandon all sums."""
        if self._groups is not None:
            self._groups.stop()
