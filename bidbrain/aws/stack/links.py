"""The peerings between a stack's networks: found, opened on both sides, removed. Every call may be repeated.

A peering passes nothing on to a third network, so there is one between each two regions. Its ends lie in two regions,
which no CloudFormation stack spans: so `up` makes it, after both stacks. The network of the home region is not the
stack's own; there the peering adds a route to the tables of the stack's subnets, and a rule to the stack's group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import permutations
from typing import Any

from bidbrain.aws.clients import Clients, code_of, tag_list, tag_map
from bidbrain.aws.site import Site
from bidbrain.aws.stack.attach import default_subnets
from bidbrain.aws.stack.formation import StackError
from bidbrain.aws.stack.names import TAG_STACK, Names, tags_of
from bidbrain.aws.stack.parts import Part, PartKind, peering_name

OPEN = "active"
WAITS = "pending-acceptance"
COMING = ("initiating-request", WAITS, "provisioning", OPEN)


@dataclass(frozen=True)
class Network:
    """A stack's network in a region.

    tables: route tables of the subnets of its machines. group: of its machines. routes: each with its table, the
    network that it leads to, and its peering. let_in: networks that the group lets in.
    """

    region: str
    vpc: str
    cidrs: tuple[str, ...]
    tables: tuple[str, ...]
    group: str
    routes: frozenset[tuple[str, str, str]]
    let_in: frozenset[str]


def clients_of(aws: Clients, site: Site, region: str) -> Clients:
    """Clients of a region of a stack. aws: of the home region."""
    return aws if region in ("", site.region) else aws.at(region)


def network(aws: Clients, site: Site, region: str) -> Network | None:
    """The stack's network in one of its regions; None: its group is not there, or not listed, yet."""
    ec2 = clients_of(aws, site, region).client("ec2")
    by_name = [{"Name": "group-name", "Values": [Names(site.name, site.region).plain]}]
    groups = ec2.describe_security_groups(Filters=by_name)["SecurityGroups"]
    ours = [each for each in groups if tag_map(each.get("Tags", ())).get(TAG_STACK) == site.name]
    if not ours:
        return None
    vpc = str(ours[0]["VpcId"])
    (described,) = ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]
    cidrs = tuple(
        str(each["CidrBlock"])
        for each in described.get("CidrBlockAssociationSet", ())
        if each.get("CidrBlockState", {}).get("State", "associated") == "associated"
    )
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    if region == site.region:
        subnets = set(dict(site.subnets or default_subnets(ec2, site, vpc)).values())
        used = _tables_of(tables, subnets)
    else:
        mine = (each for each in tables if tag_map(each.get("Tags", ())).get(TAG_STACK) == site.name)
        used = tuple(str(each["RouteTableId"]) for each in mine)
    routes = frozenset(
        (str(table["RouteTableId"]), str(route["DestinationCidrBlock"]), str(route["VpcPeeringConnectionId"]))
        for table in tables
        for route in table["Routes"]
        if "DestinationCidrBlock" in route and "VpcPeeringConnectionId" in route
    )
    let_in = {each["CidrIp"] for rule in ours[0]["IpPermissions"] for each in rule.get("IpRanges", ())}
    own = cidrs or (str(described["CidrBlock"]),)
    return Network(region, vpc, own, used, str(ours[0]["GroupId"]), routes, frozenset(let_in))


def _tables_of(tables: list[dict[str, Any]], subnets: set[str]) -> tuple[str, ...]:
    """The route tables of some subnets: those that they name, and the main one for a subnet that names none."""
    named = {
        each["SubnetId"]: table["RouteTableId"]
        for table in tables
        for each in table.get("Associations", ())
        if each.get("SubnetId")
    }
    main = [t["RouteTableId"] for t in tables if any(each.get("Main") for each in t.get("Associations", ()))]
    found = [named[subnet] for subnet in subnets if subnet in named]
    if subnets - named.keys():
        found += main
    return tuple(sorted(set(found)))


def peerings(aws: Clients, site: Site, regions: tuple[str, ...]) -> Iterator[Part]:
    """The stack's peerings, by their tag. regions: all that the stack has, or had; the home region first."""
    by_tag = [{"Name": f"tag:{TAG_STACK}", "Values": [site.name]}]
    networks: dict[str, Network | None] = {}
    seen: set[str] = set()
    for region in regions:
        ec2 = clients_of(aws, site, region).client("ec2")
        for each in ec2.describe_vpc_peering_connections(Filters=by_tag)["VpcPeeringConnections"]:
            status = each["Status"]["Code"]
            ends = (each["RequesterVpcInfo"]["Region"], each["AccepterVpcInfo"]["Region"])
            if status not in (*COMING, "deleting") or each["VpcPeeringConnectionId"] in seen:
                continue
            seen.add(each["VpcPeeringConnectionId"])
            for end in ends:
                if end not in networks and end in regions:
                    networks[end] = network(aws, site, end)
            is_open = status == OPEN and all(
                _leads(networks.get(one), networks.get(other), each["VpcPeeringConnectionId"])
                for one, other in permutations(ends)
            )
            name, ending = peering_name(*ends), status == "deleting"
            what = (PartKind.PEERING, name, each["VpcPeeringConnectionId"], True, is_open, ending)
            yield Part(*what, value=status, region=ends[0], other_region=ends[1])


def _leads(one: Network | None, other: Network | None, peering: str) -> bool:
    """Whether one network has routes to the other, and lets it in."""
    if one is None or other is None:
        return False
    routed = all((table, cidr, peering) in one.routes for table in one.tables for cidr in other.cidrs)
    return bool(one.tables) and routed and set(other.cidrs) <= one.let_in


def connect(aws: Clients, site: Site, region: str, other_region: str, part: Part | None) -> None:
    """Take the next step to a peering that is open on both sides: ask, accept, or let through. part: as it is.

    Raises StackError for networks that overlap; ClientError of a call.
    """
    from botocore.exceptions import ClientError

    one, other = network(aws, site, region), network(aws, site, other_region)
    if one is None or other is None:
        return  # not listed yet
    check_apart(one, other)
    if part is None:
        tags = tags_of(site, "peering") | {"Name": f"proteus-{site.name}"}
        try:
            clients_of(aws, site, region).client("ec2").create_vpc_peering_connection(
                VpcId=one.vpc,
                PeerVpcId=other.vpc,
                PeerRegion=other_region,
                TagSpecifications=[{"ResourceType": "vpc-peering-connection", "Tags": tag_list(tags)}],
            )
        except ClientError as error:
            if code_of(error) != "VpcPeeringConnectionAlreadyExists":  # it is not listed yet
                raise
    elif part.value == WAITS:
        there = clients_of(aws, site, other_region).client("ec2")
        there.accept_vpc_peering_connection(VpcPeeringConnectionId=part.part_id)
    elif part.value == OPEN:
        _lead(aws, site, one, other, part.part_id)
        _lead(aws, site, other, one, part.part_id)


def check_apart(one: Network, other: Network) -> None:
    """Raise StackError for networks that overlap: no route leads from one to the other."""
    for cidr in one.cidrs:
        for another in other.cidrs:
            if IPv4Network(cidr).overlaps(IPv4Network(another)):
                raise StackError(
                    f"market.regions: found the network {another} in {other.region}, expected one that does not "
                    f"overlap with {cidr} in {one.region}: set market.regions.{other.region}.cidr"
                )


def _lead(aws: Clients, site: Site, one: Network, other: Network, peering: str) -> None:
    """Routes from one network to the other, and a rule that lets the other in."""
    from botocore.exceptions import ClientError

    ec2 = clients_of(aws, site, one.region).client("ec2")
    for cidr in other.cidrs:
        for table in one.tables:
            try:
                ec2.create_route(
                    RouteTableId=table, DestinationCidrBlock=cidr, VpcPeeringConnectionId=peering
                )
            except ClientError as error:
                if code_of(error) != "RouteAlreadyExists":
                    raise
                _check_route(ec2, table, cidr, peering)
        rule = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": cidr, "Description": other.region}]}
        try:
            ec2.authorize_security_group_ingress(GroupId=one.group, IpPermissions=[rule])
        except ClientError as error:
            if code_of(error) != "InvalidPermission.Duplicate":
                raise


def _check_route(ec2: Any, table: str, cidr: str, peering: str) -> None:
    """Raise StackError where another route of the user's leads to the network."""
    (found,) = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"]
    for route in found["Routes"]:
        is_there = route.get("DestinationCidrBlock") == cidr
        if is_there and route.get("VpcPeeringConnectionId") != peering:
            raise StackError(
                f"market.regions: {table} has another route to {cidr}, expected none: take another cidr"
            )


def disconnect(aws: Clients, site: Site, part: Part) -> None:
    """Remove the routes to a peering, then the peering; rules go with their groups. Raises ClientError.

    Routes of other kinds than ours lead nowhere then, and stay.
    """
    by_peering = [{"Name": "route.vpc-peering-connection-id", "Values": [part.part_id]}]
    for region in (part.region, part.other_region):
        ec2 = clients_of(aws, site, region).client("ec2")
        for table in ec2.describe_route_tables(Filters=by_peering)["RouteTables"]:
            for route in table["Routes"]:
                cidr = route.get("DestinationCidrBlock")
                if cidr is not None and route.get("VpcPeeringConnectionId") == part.part_id:
                    ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock=cidr)
    ec2 = clients_of(aws, site, part.region).client("ec2")
    ec2.delete_vpc_peering_connection(VpcPeeringConnectionId=part.part_id)
