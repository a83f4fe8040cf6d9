"""What a machine does with its node's wishes for sums by all-reduce: torch is imported where there will be any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agileml.application import InputError
from agileml.config.job import JobConfig
from agileml.core.protocol.commands import Abandon, Broken, Form, Introduce, Met, Reduce, Reduced
from agileml.core.protocol.messages import Failure
from agileml.net.events import Address

if TYPE_CHECKING:
    from agileml.net.allreduce import AllReduce

LOOPBACK = "127.0.0.1"

Command = Form | Introduce | Reduce | Abandon


class AllReduceExchange:
    """Refuses groups that would send gradients unprotected through a network that nobody called trusted.

    Machines of one address listen where only that host reaches them.
    """

    def __init__(
        self,
        me: str,
        node_ip: str,
        config: JobConfig,
        report: Callable[[Met | Reduced | Broken | Failure], None],
    ) -> None:
        self._me = me
        self._node_ip = node_ip
        self._is_trusted = config.trusted_network
        self._report = report
        self._groups: AllReduce | None = None
        self._size = 1  # of the group
        if config.exchange == "allreduce":
            # Here and not when it is needed: importing torch takes a second, and a whole group would wait for it.
            from agileml.net.allreduce import AllReduce
            from agileml.net.collectives import collectives

            try:
                self._groups = AllReduce(me, report, collectives(config.allreduce_backend))
            except InputError as error:
                report(Failure(str(error), ""))

    def ask(self, command: Command, peers: Mapping[str, Address]) -> int:
        """Do this after what was asked before; `peers` says where the machines of the run are.

        Returns the bytes that this machine sends for it: gloo's ring sends 2 (n - 1) / n of what it adds up.
        """
        if self._groups is None:
            return 0  # the run ends: this machine has said that it cannot
        if isinstance(command, Form):
            self._size = len(command.group)
            self._form(self._groups, command, peers)
            return 0
        self._groups.ask(command)
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
        """Give up what is under way."""
        if self._groups is not None:
            self._groups.stop()
