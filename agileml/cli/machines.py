"""`proteus machines list | terminate`: the labelled nodes of a cluster, or the machines with our tag on EC2."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agileml.cli.asking import ask
from agileml.runs.progress import duration

if TYPE_CHECKING:
    from agileml.cluster.nodes import LiveNode
    from bidbrain.aws.tagged import Tagged

machines = typer.Typer(
    name="machines", no_args_is_help=True, help="Machines of a cluster, or of our runs on EC2."
)
Address = Annotated[
    str | None,
    typer.Option(help="The cluster: host:port, its dashboard's http address, or auto.", show_default="auto"),
]
Region = Annotated[
    str | None,
    typer.Option("--aws", metavar="REGION", help="Machines of our runs in a region of EC2, by their tag."),
]
JobName = Annotated[
    str | None,
    typer.Option("--job", help="With --aws: only machines of this job.", show_default="of all jobs"),
]
WARNING_S = 30.0  # of a machine that the user ends
SHORT = 12  # characters of a node's id that people get to see


def mount(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(machines)


@contextmanager
def _sentences() -> Iterator[None]:
    from agileml.cluster.errors import ClusterError
    from bidbrain.live.cloud import CloudError

    try:
        yield
    except (ClusterError, CloudError) as error:
        raise typer.BadParameter(str(error)) from None


@machines.command("list")
def list_machines(
    address: Address = None,
    region: Region = None,
    job: JobName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each machine.")] = False,
) -> None:
    """Show the machines: id, tier, allocation and address; on EC2 id, job, market, state and age."""
    with _sentences():
        if region is not None:
            _refuse_address(address)
            _show(_tagged_in(region, job), _tagged_line, "no machine of ours in " + region, as_json)
        else:
            from agileml.cluster.nodes import ClusterNodes

            nodes = ClusterNodes(_cluster(address, job))
            _show(nodes.all(), _node_line, f"no labelled node at {nodes.address}", as_json)


@machines.command()
def terminate(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids as `list` shows them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that `list` shows.")] = False,
    address: Address = None,
    region: Region = None,
    job: JobName = None,
    warning_s: Annotated[
        float | None,
        typer.Option(
            min=0, help="In a cluster: seconds for a run to move its work off.", show_default=f"{WARNING_S:g}"
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """End machines. In a cluster they get notice, and their Ray nodes end once nothing runs on them."""
    wanted = list(ids or ())
    with _sentences():
        if region is not None:
            from bidbrain.aws import tagged

            _refuse_address(address)
            if warning_s is not None:
                raise typer.BadParameter(
                    "found --warning-s with --aws, expected it left out: EC2 ends machines at once"
                )
            doomed = tagged.chosen(_tagged_in(region, job), wanted, every=every)
            if _agreed([_tagged_line(machine) for machine in doomed], yes):
                tagged.terminate(_ec2(region), doomed)
                print(f"told EC2 to end {len(doomed)} machines")
            return
        from agileml.cluster.nodes import ClusterNodes, chosen

        nodes = ClusterNodes(_cluster(address, job))
        going = chosen(nodes.all(), wanted, every=every)
        notice_s = WARNING_S if warning_s is None else warning_s
        if _agreed([_node_line(node) for node in going], yes):
            for node in going:
                nodes.terminate(node.machine.node_id, notice_s)
            print(f"gave {len(going)} machines notice of {notice_s:g} s")


def _refuse_address(address: str | None) -> None:
    if address is not None:
        raise typer.BadParameter("found --address with --aws, expected one of them")


def _cluster(address: str | None, job: str | None) -> str:
    if job is not None:
        raise typer.BadParameter("--job: found it without --aws, expected both or neither")
    return address or "auto"


def _agreed(lines: Sequence[str], yes: bool) -> bool:
    """True when there is something to end and the user wants that."""
    if not lines:
        print("nothing to end")
        return False
    for text in lines:
        print(text)
    if not yes:
        ask(f"End {len(lines)} machines?")
    return True


def _show(found: Sequence[Any], show: Any, nothing: str, as_json: bool) -> None:
    for machine in found:
        print(json.dumps(asdict(machine)) if as_json else show(machine))
    if not found and not as_json:
        print(nothing)


def _node_line(node: LiveNode) -> str:
    machine = node.machine
    left_s = None if node.leaves_s is None else max(0.0, node.leaves_s - time.time())
    leaves = "" if left_s is None else f"  leaves in {duration(left_s)}"
    allocation = "-" if machine.allocation == machine.node_id else machine.allocation
    return f"{machine.node_id[:SHORT]}  {machine.tier.value:9}  {allocation:16}  {machine.ip}{leaves}"


def _tagged_line(machine: Tagged) -> str:
    age = duration(max(0.0, time.time() - machine.launched_s))
    return f"{machine.machine_id}  {machine.job}  {machine.market}  {machine.state}  {age}"


def _tagged_in(region: str, job: str | None) -> list[Tagged]:
    from bidbrain.aws.tagged import tagged

    return tagged(_ec2(region), job)


def _ec2(region: str) -> Any:
    from bidbrain.aws.calls import client

    return client("ec2", region)
