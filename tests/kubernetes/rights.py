"""Kubernetes' judgement of a request: RBAC rules of the manifests, and their admission policy by a CEL evaluator."""

from __future__ import annotations

from typing import Any

import celpy
from celpy.adapter import json_to_cel

from bidbrain.kubernetes.manifest import Manifest
from tests.kubernetes.api_server import Right

GROUPS = {"rayclusters": "ray.io", "pods": "", "nodes": ""}


def granted(manifests: list[Manifest]) -> set[Right]:
    """The rights of the roles that are bound to the account: (verb, resource, name or "" for any)."""
    roles = {
        (each["kind"], each["metadata"]["name"]): each
        for each in manifests
        if each["kind"] in ("Role", "ClusterRole")
    }
    found = set()
    for binding in manifests:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            reference = binding["roleRef"]
            for rule in roles[(reference["kind"], reference["name"])]["rules"]:
                for resource in rule["resources"]:
                    assert rule["apiGroups"] == [GROUPS[resource]]
                    for verb in rule["verbs"]:
                        found |= {(verb, resource, name) for name in rule.get("resourceNames", [""])}
    return found


def allows(rights: set[Right], right: Right) -> bool:
    """Whether a request is within the rights."""
    verb, resource, name = right
    return bool({(verb, resource, ""), (verb, resource, name)} & rights)


def refusal(manifests: list[Manifest], user: str, old: Any, new: Any) -> str | None:
    """Why the admission policy refuses an update; None: it does not."""
    (policy,) = (each["spec"] for each in manifests if each["kind"] == "ValidatingAdmissionPolicy")
    environment = celpy.Environment()
    names = json_to_cel({"object": new, "oldObject": old, "request": {"userInfo": {"username": user}}})

    def holds(expression: str) -> bool:
        program = environment.program(environment.compile(expression))
        return bool(program.evaluate({str(key): value for key, value in names.items()}))

    if not all(holds(each["expression"]) for each in policy["matchConditions"]):
        return None
    for each in policy["validations"]:
        if not holds(each["expression"]):
            return str(each["message"])
    return None
