"""Reading what `stack_checks` judges: the account, the region, types, prices, quotas, rights.

What is needed to go on raises; what is only good to know and cannot be read becomes `Unread` with its reason.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bidbrain.live.aws_calls import errors
from bidbrain.live.cloud import CloudError
from bidbrain.live.site import Site
from bidbrain.live.stack import names_of
from bidbrain.live.stack_checks import Facts, Quota, TypeFact, Unread, family
from bidbrain.live.stack_find import Clients, code_of
from bidbrain.live.stack_user_policy import user_policy
from bidbrain.machines import UnknownTypeError, find_type
from bidbrain.money import micro_usd

# vCPUs that may run at a time, by family: Service Quotas' codes of (on-demand, spot).
QUOTA_CODES = {
    "standard": ("L-1216C47A", "L-34B43A08"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "x": ("L-7295265B", "L-E3A00192"),
    "f": ("L-74FC7D96", "L-88CF9481"),
}
NO_RETRY = 1  # calls that an account often may not do, or that a stand-in does not know


class FactError(CloudError):
    """Something in the config that AWS does not know, in one sentence."""


def check_region(region: str) -> None:
    """Raises FactError for a region that this version of botocore has never heard of; asks nobody."""
    import botocore.session

    session: Any = botocore.session.get_session()
    known = [
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition)
    ]
    if region not in known:
        close = difflib.get_close_matches(region, known, 3) or known[:5]
        raise FactError(f"market.region: found {region}, expected {' or '.join(close)}")


def read_facts(aws: Clients, site: Site, now: datetime | None = None) -> Facts:
    """All facts. Raises CloudError: no credentials, an unknown type or image, no network."""
    with errors("credentials"):
        me = aws.client("sts").get_caller_identity()
    account, identity = me["Account"], me["Arn"]
    _check_bucket(aws, site)
    image = _image_id(aws, site)
    architecture, device = _image(aws, image)
    vpc, subnets = _subnets(aws, site)
    return Facts(
        account=account,
        identity=identity,
        all_zones=_zones(aws),
        types=_types(aws, site),
        image=image,
        image_architecture=architecture,
        root_device=device,
        vpc=vpc,
        subnets=subnets,
        spot=_spot(aws, site, now or datetime.now(UTC)),
        quotas=_quotas(aws, site),
        denied=_denied(aws, site, account, identity),
    )


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


def _image(aws: Clients, image: str) -> tuple[str | None, str]:
    """(architecture, root device); an image that AWS does not show is left to its launch."""
    with errors(f"market.image: {image}"):
        found = aws.client("ec2").describe_images(Filters=[{"Name": "image-id", "Values": [image]}])
    if not found["Images"]:
        return None, "/dev/xvda"
    (one,) = found["Images"]
    return one.get("Architecture"), one.get("RootDeviceName") or "/dev/xvda"


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
        price, source = _on_demand(aws, site, name)
        facts[name] = TypeFact(
            vcpus=site.vcpus.get(name, each["VCpuInfo"]["DefaultVCpus"]),
            architectures=tuple(each.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
            on_demand=price,
            source=source,
            zones=tuple(zone for zone in site.zones if (name, zone) in offers),
        )
    return facts


def _on_demand(aws: Clients, site: Site, name: str) -> tuple[int | None, str]:
    """Micro-dollars per hour and where they are from: the config, AWS's price list, the package's table."""
    if name in site.on_demand:
        return micro_usd(str(site.on_demand[name])), "the config"
    if (price := _listed(aws, site.region, name)) is not None:
        return price, "AWS's price list"
    try:
        return find_type(name, 1 << 40).on_demand, "the package's table (us-east-1)"
    except UnknownTypeError:
        return None, "nobody"


def _listed(aws: Clients, region: str, name: str) -> int | None:
    """The price list's Linux price on shared hardware; None where it cannot be read."""
    wanted = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    try:
        with errors("prices"):
            answer = aws.client("pricing", NO_RETRY).get_products(ServiceCode="AmazonEC2", Filters=filters)
    except CloudError:
        return None
    for text in answer.get("PriceList", ()):
        for term in json.loads(text).get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                if float(usd := dimension["pricePerUnit"].get("USD", "0")) > 0:
                    return micro_usd(usd)
    return None


def _spot(aws: Clients, site: Site, now: datetime) -> dict[tuple[str, str], int] | Unread:
    try:
        with errors("spot prices"):
            pages = (
                aws.client("ec2")
                .get_paginator("describe_spot_price_history")
                .paginate(
                    InstanceTypes=list(site.types),
                    ProductDescriptions=["Linux/UNIX"],
                    Filters=[{"Name": "availability-zone", "Values": list(site.zones)}],
                    StartTime=now - timedelta(hours=1),
                    EndTime=now,
                )
            )
            newest: dict[tuple[str, str], tuple[datetime, int]] = {}
            for page in pages:
                for entry in page["SpotPriceHistory"]:
                    key = (entry["InstanceType"], entry["AvailabilityZone"])
                    if key[0] not in site.types or key[1] not in site.zones:
                        continue
                    row = (entry["Timestamp"], micro_usd(entry["SpotPrice"]))
                    newest[key] = max(newest.get(key, row), row)
    except CloudError as error:
        return Unread(_short(error))
    return {key: price for key, (_, price) in newest.items()}


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
        return Unread(_short(error))
    quota = answer["Quota"]
    return Quota(code, quota.get("QuotaName", code), float(quota["Value"]))


def _denied(aws: Clients, site: Site, account: str, identity: str) -> tuple[str, ...] | Unread:
    """Actions of the user policy that IAM's simulator refuses for this identity."""
    if identity.endswith(":root"):
        return ()
    source = identity
    if ":assumed-role/" in identity:  # the role behind the session; its path is not told
        partition, role = identity.split(":")[1], identity.split("/")[1]
        source = f"arn:{partition}:iam::{account}:role/{role}"
    iam = aws.client("iam", NO_RETRY)
    refused: list[str] = []
    for statement in user_policy(names_of(site, account), site.bucket is None)["Statement"]:
        if "Condition" in statement:  # the simulator knows nothing of our tags
            continue
        # Wildcards are no resources: anything that they match stands for them.
        resources = (
            [] if statement["Resource"] == ["*"] else [r.replace("*", "x") for r in statement["Resource"]]
        )
        actions = [action for action in statement["Action"] if not action.endswith("*")]
        try:
            with errors("IAM's simulator"):
                refused += _refused(iam, source, actions, resources)
        except CloudError as error:
            return Unread(_short(error))
    return tuple(dict.fromkeys(refused))


def _short(error: CloudError, most: int = 160) -> str:
    """A sentence of an error, without the page that it may quote."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def _refused(iam: Any, source: str, actions: Sequence[str], resources: Sequence[str]) -> tuple[str, ...]:
    where = {"ResourceArns": list(resources)} if resources else {}
    results = iam.get_paginator("simulate_principal_policy").paginate(
        PolicySourceArn=source, ActionNames=list(actions), **where
    )
    return tuple(
        result["EvalActionName"]
        for page in results
        for result in page["EvaluationResults"]
        if result["EvalDecision"] != "allowed"
    )
