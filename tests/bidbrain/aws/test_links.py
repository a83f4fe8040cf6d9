"""Peerings between the regions of a stack, against EC2's words alone."""

from __future__ import annotations

from typing import Any

from bidbrain.aws.stack.links import disconnect
from bidbrain.aws.stack.parts import Part, PartKind
from tests.bidbrain.aws.demo_stack import SITE

PEERING = "pcx-1"


class OneRegion:
    """Clients whose only route table has these routes; every region has it. done: calls that change something."""

    def __init__(self, *routes: dict[str, str]) -> None:
        self._table = {"RouteTableId": "rtb-1", "Routes": list(routes)}
        self.done: list[tuple[str, dict[str, Any]]] = []

    def client(self, service: str, attempts: int = 1) -> Any:
        return self

    def at(self, region: str) -> OneRegion:
        return self

    def describe_route_tables(self, **request: Any) -> dict[str, Any]:
        return {"RouteTables": [self._table]}

    def delete_route(self, **request: Any) -> None:
        self.done.append(("delete_route", request))

    def delete_vpc_peering_connection(self, **request: Any) -> None:
        self.done.append(("delete_vpc_peering_connection", request))


def test_a_peering_goes_though_its_user_has_led_other_routes_through_it() -> None:
    through = {"VpcPeeringConnectionId": PEERING}
    aws = OneRegion(
        {"DestinationIpv6CidrBlock": "fd00::/8", **through},
        {"DestinationPrefixListId": "pl-1", **through},
        {"DestinationCidrBlock": "10.81.0.0/16", **through},
        {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"},
    )
    part = Part(PartKind.PEERING, "peering", PEERING, region="us-east-1", other_region="us-west-2")
    disconnect(aws, SITE, part)
    ours = ("delete_route", {"RouteTableId": "rtb-1", "DestinationCidrBlock": "10.81.0.0/16"})
    assert aws.done == [ours, ours, ("delete_vpc_peering_connection", through)]
