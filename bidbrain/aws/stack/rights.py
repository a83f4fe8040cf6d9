"""The rights of an identity: IAM's simulator says which actions of the operator's policy it lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.aws.clients import NO_RETRY, Clients
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import Check, Facts, Unread, Verdict
from bidbrain.aws.stack.names import names_of
from bidbrain.aws.stack.template import operator_policy, region_policy, role_policy
from bidbrain.live.cloud import CloudError

BOUNDARY_KEY = "iam:PermissionsBoundary"
ROLE_MOST = 10_240  # characters of a role's own policies together, without white space, that IAM takes
TEMPLATE_ID = "lt-0123456789abcdef0"  # as long as those that EC2 gives


def denied_actions(aws: Clients, site: Site, account: str, identity: str) -> tuple[str, ...] | Unread:
    """Actions of the operator's policy that IAM's simulator refuses for this identity."""
    if identity.endswith(":root"):
        return ()
    source = identity
    if ":assumed-role/" in identity:  # the role behind the session; its path is not told
        partition, role = identity.split(":")[1], identity.split("/")[1]
        source = f"arn:{partition}:iam::{account}:role/{role}"
    iam = aws.client("iam", NO_RETRY)
    refused: list[str] = []
    for statement in operator_policy(names_of(site, account), site.bucket is None)["Statement"]:
        context = _context(statement.get("Condition", {}), site.boundary)
        if context is None:
            continue
        # Wildcards are no resources: anything that they match stands for them.
        resources = (
            [] if statement["Resource"] == ["*"] else [r.replace("*", "x") for r in statement["Resource"]]
        )
        actions = [action for action in statement["Action"] if not action.endswith("*")]
        try:
            with errors("IAM's simulator"):
                refused += _refused(iam, source, actions, resources, context)
        except CloudError as error:
            return Unread(short(error))
    return tuple(dict.fromkeys(refused))


def role_check(site: Site, facts: Facts) -> Iterator[Check]:
    """Whether IAM takes the policies of the head's role: each names every type, and each other region adds one."""
    names, types = names_of(site, facts.account), site.bought_types
    policies = [role_policy(names, "HeadRole", types, facts.image)]
    policies += [
        region_policy(names, region, types, there.image) for region, there in facts.elsewhere.items()
    ]
    text = "".join(json.dumps(policy, separators=(",", ":")) for policy in policies)
    size = len(text.replace("NodeTemplate", TEMPLATE_ID))
    if size > ROLE_MOST:
        also = f" with {len(facts.elsewhere)} other regions" * bool(facts.elsewhere)
        text = (
            f"market.types: found {len(site.types)}{also}, expected fewer: the role {names.head} would have "
            f"{size} characters of policies, and IAM takes {ROLE_MOST}"
        )
        yield Check("rights", Verdict.WRONG, text)


def short(error: CloudError, most: int = 160) -> str:
    """A sentence of an error, without the page that it may quote."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def _context(condition: Mapping[str, Mapping[str, str]], boundary: str | None) -> list[dict[str, Any]] | None:
    """The facts of a request that meets a statement's condition, for the simulator; None: it cannot be told them, as it
    knows nothing of our tags. boundary: of the roles that are made, which may be another one than the policy's, or
    none.
    """
    equal = dict(condition.get("StringEquals", {}))
    if condition.keys() - {"StringEquals"} or any(not key.startswith("iam:") for key in equal):
        return None
    if BOUNDARY_KEY in equal:
        equal = {BOUNDARY_KEY: boundary} if boundary else {}
    return [
        {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for key, value in equal.items()
    ]


def _refused(
    iam: Any, source: str, actions: Sequence[str], resources: Sequence[str], context: list[dict[str, Any]]
) -> list[str]:
    """The actions that are allowed on none of the resources: a statement names roles and profiles together."""
    where = {"ResourceArns": list(resources)} if resources else {}
    results = iam.get_paginator("simulate_principal_policy").paginate(
        PolicySourceArn=source, ActionNames=list(actions), ContextEntries=context, **where
    )
    allowed = {
        result["EvalActionName"]
        for page in results
        for result in page["EvaluationResults"]
        if result["EvalDecision"] == "allowed"
        or any(
            each["EvalResourceDecision"] == "allowed" for each in result.get("ResourceSpecificResults", ())
        )
    }
    return [action for action in actions if action not in allowed]
