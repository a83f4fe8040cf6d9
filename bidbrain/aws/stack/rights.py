"""The rights of an identity: IAM's simulator says which actions of the operator's policy it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.aws.clients import NO_RETRY, Clients
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import Unread
from bidbrain.aws.stack.names import names_of
from bidbrain.aws.stack.template import operator_policy
from bidbrain.live.cloud import CloudError

BOUNDARY_KEY = "iam:PermissionsBoundary"


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
