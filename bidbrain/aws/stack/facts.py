"""Read the facts that `checks` judges: the account, the region, types, prices, quotas, rights.

A fact that is needed raises if it cannot be read; one that is only good to know becomes `Unread` with its reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bidbrain.aws.calls import core_session, errors
from bidbrain.aws.clients import NO_RETRY, Clients, code_of
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import Facts, Quota, TypeFact, Unread, family
from bidbrain.aws.stack.prices import on_demand_price, spot_prices
from bidbrain.aws.stack.rights import denied_actions, short
from bidbrain.live.cloud import CloudError

# vCPUs that may run at a time, by family: Service Quotas' codes of (on-demand, spot).
QUOTA_CODES = {
    "standard": ("L-1216C47A", "L-34B43A08"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "x": ("L-7295265B", "L-E3A00192"),
    "f": ("L-74FC7D96", "L-88CF9481"),
}


class FactError(CloudError):
    """Something in the config that AWS does not know, in one sentence."""


def check_region(region: str, key: str = "market.region") -> None:
    """Raises FactError for a region that this version of botocore has never heard of; makes no call."""
    session = core_session()
    known = [
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition)
    ]
    if region not in known:
        close = difflib.get_close_matches(region, known, 3) or known[:5]
        raise FactError(f"{key}: found {region}, expected {' or '.join(close)}")


def read_facts(aws: Clients, site: Site, now: datetime | None = None) -> Facts:
    """All facts. Raises CloudError: no credentials, an unknown type or image, no network."""
    with errors("credentials"):
        me = aws.client("sts").get_caller_identity()
    account, identity = me["Account"], me["Arn"]
    _check_bucket(aws, site)
    image = _image_id(aws, site)
    architecture, device, gib = _image(aws, image)
    vpc, subnets = _subnets(aws, site)
    now = now or datetime.now(UTC)
    return Facts(
        account=account,
        identity=identity,
        all_zones=_zones(aws),
        types=_types(aws, site),
        image=image,
        image_architecture=architecture,
        root_device=device,
        image_gib=gib,
        vpc=vpc,
        subnets=subnets,
        spot=spot_prices(aws, site, now),
        quotas=_quotas(aws, site),
        denied=denied_actions(aws, site, account, identity),
        cidrs=_cidrs(aws, vpc) if site.regions else (),
        elsewhere={name: _facts_in(aws.at(name), site.part_in(name), now) for name in site.regions},
    )


def _facts_in(aws: Clients, site: Site, now: datetime) -> Facts:
    """The facts of another region. site: its part there, whose network `up` makes; aws: its clients."""
    image = _image_id(aws, site)
    architecture, device, gib = _image(aws, image)
    quotas = {what: quota for what, quota in _quotas(aws, site).items() if what[1] == "spot"}
    return Facts(
        account="",
        identity="",
        all_zones=_zones(aws),
        types=_types(aws, site),
        image=image,
        image_architecture=architecture,
        root_device=device,
        image_gib=gib,
        vpc="",
        subnets=dict.fromkeys(site.zones, ""),
        spot=spot_prices(aws, site, now),
        quotas=quotas,
    )


def _cidrs(aws: Clients, vpc: str) -> tuple[str, ...]:
    """The networks of a VPC."""
    with errors("the network of the home region"):
        (found,) = aws.client("ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"]
    return tuple(str(each["CidrBlock"]) for each in found["CidrBlockAssociationSet"])


def _zones(aws: Clients) -> tuple[str, ...]:
    with errors("zones"):
        found = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    return tuple(sorted(zone["ZoneName"] for zone in found))


def _check_bucket(aws: Clients, site: Site) -> None:
    """A bucket that the config names is there and may be used. Raises FactError."""
    from botocore.exceptions import ClientError

    if site.bucket is None:
        return
    with errors(f"market.bucket: {site.bucket}"):
        try:
            aws.client("s3").head_bucket(Bucket=site.bucket)
        except ClientError as error:
            if code_of(error) not in ("403", "404", "NoSuchBucket"):
                raise
            said = "one that is not yours" if code_of(error) == "403" else "none of that name"
            raise FactError(
                f"market.bucket: {site.bucket}: found {said}, expected a bucket of yours (or no key: `up` makes one)"
            ) from None


def _image_id(aws: Clients, site: Site) -> str:
    """The AMI that a parameter names now: all machines of a stack start from the same one."""
    if not site.image.startswith("resolve:ssm:"):
        return site.image
    name = site.image.removeprefix("resolve:ssm:")
    with errors(f"market.image: the parameter {name}"):
        return str(aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])


def _image(aws: Clients, image: str) -> tuple[str | None, str, int]:
    """(architecture, root device, its GiB); an image that AWS does not show is left to its launch."""
    with errors(f"market.image: {image}"):
        what = [{"Name": "image-id", "Values": [image]}]
        # A public AMI is deprecated some months or years after it was made. It starts machines as before.
        found = aws.client("ec2").describe_images(Filters=what, IncludeDeprecated=True)
    if not found["Images"]:
        return None, "/dev/xvda", 0
    (one,) = found["Images"]
    device = one.get("RootDeviceName") or "/dev/xvda"
    disks = {
        each.get("DeviceName"): each.get("Ebs", {}).get("VolumeSize", 0)
        for each in one.get("BlockDeviceMappings", ())
    }
    return one.get("Architecture"), device, int(disks.get(device, 0))


def _subnets(aws: Clients, site: Site) -> tuple[str, dict[str, str]]:
    """(VPC, zone -> subnet): those of the config, or the default VPC's. Raises FactError."""
    ec2 = aws.client("ec2")
    if site.subnets:
        with errors("market.subnets"):
            found = ec2.describe_subnets(SubnetIds=sorted(set(site.subnets.values())))["Subnets"]
        where = {each["SubnetId"]: each["AvailabilityZone"] for each in found}
        for zone, subnet in site.subnets.items():
            if where[subnet] != zone:
                raise FactError(f"market.subnets: {subnet} is in zone {where[subnet]}, expected {zone}")
        networks = sorted({each["VpcId"] for each in found})
        if len(networks) > 1:
            raise FactError(
                f"market.subnets: found subnets of the VPCs {', '.join(networks)}, expected one VPC"
            )
        return networks[0], dict(site.subnets)
    with errors("subnets of the default VPC"):
        found = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    if not found:
        raise FactError(
            "market.subnets: found none and no default VPC, expected a subnet for each of market.zones"
        )
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found}
    return found[0]["VpcId"], {zone: subnets[zone] for zone in site.zones if zone in subnets}


def _types(aws: Clients, site: Site) -> dict[str, TypeFact]:
    from botocore.exceptions import ClientError

    ec2 = aws.client("ec2")
    found: dict[str, Mapping[str, Any]] = {}
    for name in site.all_types:  # one by one: the answer to several does not say well which one is wrong
        with errors("machine types"):
            try:
                answer = ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
            except ClientError as error:
                if code_of(error) != "InvalidInstanceType":
                    raise
                answer = []
        if not answer:
            raise FactError(f"market: found the machine type {name}, expected one that {site.region} offers")
        found[name] = answer[0]
    with errors("offers of machine types"):
        filters = [{"Name": "instance-type", "Values": list(site.all_types)}]
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=filters
        )
        offers = {
            (each["InstanceType"], each["Location"])
            for page in pages
            for each in page["InstanceTypeOfferings"]
        }
    facts = {}
    for name, each in found.items():
        price, source = on_demand_price(aws, site, name)
        facts[name] = TypeFact(
            vcpus=site.vcpus.get(name, each["VCpuInfo"]["DefaultVCpus"]),
            architectures=tuple(each.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
            on_demand=price,
            source=source,
            zones=tuple(zone for zone in site.zones if (name, zone) in offers),
        )
    return facts


def _quotas(aws: Clients, site: Site) -> dict[tuple[str, str], Quota | Unread]:
    wanted = [(family(name), "on-demand") for name in (site.head_type, site.of_reliable)]
    wanted += [(family(name), "spot") for name in site.types]
    return {(group, life): _quota(aws, group, life) for group, life in dict.fromkeys(wanted)}


def _quota(aws: Clients, group: str, life: str) -> Quota | Unread:
    codes = QUOTA_CODES.get(group)
    if codes is None:
        return Unread(f"no code of a quota is known for {group} types")
    code = codes[life == "spot"]
    try:
        with errors(f"quota {code}"):
            answer = aws.client("service-quotas", NO_RETRY).get_service_quota(
                ServiceCode="ec2", QuotaCode=code
            )
    except CloudError as error:
        return Unread(short(error))
    quota = answer["Quota"]
    return Quota(code, quota.get("QuotaName", code), float(quota["Value"]))
