"""Manifests for `kubectl apply`: a RayCluster for spot nodes, and the rights that a job in its head needs. Pure.

Ray talks TLS. `proteus k8s authority` makes a secret with an authority of certificates, and an init container in each
pod issues the pod a certificate for its own address (`certify`); only that container sees the authority's private key.

The rights are the least that `kuberay` can do with: read pods of the namespace, read nodes, read and patch this one
RayCluster. An account that may patch a RayCluster could put any pod into it, so an admission policy lets this account
change nothing but how many pods there are, which of them go, and the book of orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import yaml

from bidbrain.kubernetes.book import ANNOTATION
from bidbrain.kubernetes.certify import AUTHORITY_FILE, CA, CERTIFICATE, KEY
from bidbrain.kubernetes.objects import CLUSTER_LABEL

Manifest = dict[str, Any]
RELIABLE, SPOT = "reliable", "spot"
MARGIN_S = 5  # of a pod's grace, for the kubelet
AUTHORITY_FOLDER, TLS_FOLDER = "/etc/proteus/authority", "/etc/proteus/tls"


class Provider(StrEnum):
    """A provider of spot nodes; each has a label, perhaps a taint, and a warning of its own."""

    GKE = "gke"
    EKS = "eks"
    KARPENTER = "karpenter"
    AKS = "aks"


@dataclass(frozen=True)
class SpotNodes:
    """The label of a provider's spot nodes, whether they carry it as a taint too, and seconds of grace in a pod there.

    Of AWS's two minutes ten seconds are left for the eviction to begin, of Azure's 30 s five. GKE's kubelet leaves 15 s
    to pods that are not the system's.
    """

    key: str
    value: str
    is_tainted: bool
    grace_s: int


NODES = {
    Provider.GKE: SpotNodes("cloud.google.com/gke-spot", "true", True, 15),
    Provider.EKS: SpotNodes("eks.amazonaws.com/capacityType", "SPOT", False, 110),
    Provider.KARPENTER: SpotNodes("karpenter.sh/capacity-type", "spot", False, 110),
    Provider.AKS: SpotNodes("kubernetes.azure.com/scalesetpriority", "spot", True, 25),
}


@dataclass(frozen=True)
class PodSize:
    """The resource requests of a pod. memory: as Kubernetes writes it, such as 16Gi."""

    cpus: int
    memory: str


@dataclass(frozen=True)
class ClusterPlan:
    """A RayCluster to be. replicas: spot pods from the beginning, for runs without a market, and reliable ones.

    most: maxReplicas of both groups. ray_version: of the image. grace_s: of a spot pod; None: what the provider gives.
    domain: of the Kubernetes cluster's DNS.
    """

    name: str
    namespace: str
    image: str
    provider: Provider
    ray_version: str
    size: PodSize
    most: int = 16
    reliable_replicas: int = 0
    spot_replicas: int = 0
    grace_s: int | None = None
    domain: str = "cluster.local"

    @property
    def spot(self) -> SpotNodes:
        """The nodes of its pool."""
        nodes = NODES[self.provider]
        return nodes if self.grace_s is None else replace(nodes, grace_s=self.grace_s)

    @property
    def authority(self) -> str:
        """The name of the secret with the authority of certificates."""
        return authority_name(self.name)

    @property
    def head_names(self) -> tuple[str, ...]:
        """The names of the head's service, by which KubeRay has workers find it."""
        service = f"{self.name}-head-svc"
        local = f"{service}.{self.namespace}.svc"
        return (service, f"{service}.{self.namespace}", local, f"{local}.{self.domain}")

    @property
    def account(self) -> str:
        """The head's service account, as requests name it."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


def manifests(plan: ClusterPlan) -> list[Manifest]:
    """Every object, in the order in which they are to be made."""
    return [
        _object("v1", "ServiceAccount", plan, automountServiceAccountToken=False),
        *_rights(plan),
        *_admission(plan),
        _network(plan),
        _ray_cluster(plan),
    ]


def authority_name(cluster: str) -> str:
    """The name of the secret with a cluster's authority of certificates."""
    return f"{cluster}-authority"


def authority_secret(cluster: str, namespace: str, pem: str) -> Manifest:
    """That secret. pem: certificate and private key."""
    about = {"name": authority_name(cluster), "namespace": namespace}
    kind = {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque"}
    return kind | {"immutable": True, "stringData": {AUTHORITY_FILE: pem}}


def text(plan: ClusterPlan) -> str:
    """The manifests as YAML, with a comment ahead that gives the lines for a job's config."""
    found = yaml.dump_all(manifests(plan), Dumper=_NoAliases, sort_keys=False, width=110)
    return "\n".join(_head(plan)) + "\n---\n" + found


class _NoAliases(yaml.SafeDumper):
    """Writes repeated parts out instead of as references: people read it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _head(plan: ClusterPlan) -> Iterator[str]:
    group = f"{{group: {RELIABLE}, vcpus: {plan.size.cpus}, usd_per_h: DOLLARS}}"
    yield f"# A RayCluster with a group of pods on nodes that stay and one on spot nodes ({plan.provider})."
    yield "# It needs KubeRay 1.5.1 or later (node labels, tokens) and Kubernetes 1.30 or later (admission policies)."
    yield f"# It needs the secret {plan.authority} first, once:"
    yield f"#   proteus k8s authority --name {plan.name} --namespace {plan.namespace} | kubectl create -f -"
    yield "# In the config of a job, with what a pod's share of a node costs:"
    yield "#   address: auto"
    yield "#   market:"
    yield "#     kind: kubernetes"
    yield f"#     cluster: {plan.name}"
    yield f"#     pools: {{{SPOT}: {{vcpus: {plan.size.cpus}, usd_per_h: DOLLARS}}}}"
    yield f"#     reliable: {group}"


def _object(
    version: str, kind: str, plan: ClusterPlan, *, cluster_wide: bool = False, **rest: Any
) -> Manifest:
    about = {"name": f"{plan.namespace}-{plan.name}"} if cluster_wide else {"name": plan.name}
    if not cluster_wide:
        about["namespace"] = plan.namespace
    return {"apiVersion": version, "kind": kind, "metadata": about, **rest}


def _rights(plan: ClusterPlan) -> Iterator[Manifest]:
    group = "rbac.authorization.k8s.io"
    version = f"{group}/v1"
    subjects = [{"kind": "ServiceAccount", "name": plan.name, "namespace": plan.namespace}]
    reads = ["get", "list", "watch"]
    own = {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "resourceNames": [plan.name]}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": reads}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": reads}
    yield _object(version, "Role", plan, rules=[{**own, "verbs": ["get", "patch"]}, pods])
    role = {"apiGroup": group, "kind": "Role", "name": plan.name}
    yield _object(version, "RoleBinding", plan, roleRef=role, subjects=subjects)
    yield _object(version, "ClusterRole", plan, cluster_wide=True, rules=[nodes])
    role = {"apiGroup": group, "kind": "ClusterRole", "name": f"{plan.namespace}-{plan.name}"}
    yield _object(version, "ClusterRoleBinding", plan, cluster_wide=True, roleRef=role, subjects=subjects)


SCALES_ONLY = (
    "object.spec.all(key, key == 'workerGroupSpecs' || (key in oldObject.spec && "
    "object.spec[key] == oldObject.spec[key])) && oldObject.spec.all(key, key in object.spec)"
)
SAME_GROUPS = (
    "size(object.spec.workerGroupSpecs) == size(oldObject.spec.workerGroupSpecs) && "
    "oldObject.spec.workerGroupSpecs.all(old, "
    "object.spec.workerGroupSpecs.exists(group, group.groupName == old.groupName)) && "
    "object.spec.workerGroupSpecs.all(group, oldObject.spec.workerGroupSpecs.exists(old, "
    "old.groupName == group.groupName && "
    "group.all(key, key in ['replicas', 'scaleStrategy'] || (key in old && group[key] == old[key])) && "
    "old.all(key, key in ['replicas', 'scaleStrategy'] || key in group)))"
)
# By its labels, annotations, finalizers and owners others would treat the RayCluster otherwise: queues, KubeRay itself,
# whoever deletes it.
SAME_ABOUT = (
    "['labels', 'finalizers', 'ownerReferences'].all(key, "
    "(key in object.metadata) == (key in oldObject.metadata) && "
    "(!(key in object.metadata) || object.metadata[key] == oldObject.metadata[key])) && "
    f"(!has(object.metadata.annotations) || object.metadata.annotations.all(key, key == '{ANNOTATION}' || "
    "(has(oldObject.metadata.annotations) && key in oldObject.metadata.annotations && "
    "object.metadata.annotations[key] == oldObject.metadata.annotations[key]))) && "
    f"(!has(oldObject.metadata.annotations) || oldObject.metadata.annotations.all(key, key == '{ANNOTATION}' || "
    "(has(object.metadata.annotations) && key in object.metadata.annotations)))"
)

LONGEST = 50  # of the names of cluster and group that KubeRay puts into a pod's; it cuts off the rest


def own_pods(cluster: str) -> str:
    """Each pod that a job newly names in a group is one of the group's, by the name that KubeRay gave it.

    KubeRay deletes any pod of the namespace that is named. Of a group whose name KubeRay changes, as it is long or has
    capitals, pods of the cluster will do.
    """
    named = "has({0}.scaleStrategy) && has({0}.scaleStrategy.workersToDelete)"
    is_kept = (
        "oldObject.spec.workerGroupSpecs.exists(old, old.groupName == group.groupName && "
        f"{named.format('old')} && pod in old.scaleStrategy.workersToDelete)"
    )
    is_plain = f"size(group.groupName) < {LONGEST - len(cluster)} && group.groupName.matches('^[a-z0-9-]*$')"
    is_own = (
        f"pod.startsWith('{cluster}-') && ({is_plain} ? pod.startsWith('{cluster}-' + group.groupName + '-worker-') : "
        "pod.contains('-worker-'))"
    )
    return (
        f"object.spec.workerGroupSpecs.all(group, !({named.format('group')}) || "
        f"group.scaleStrategy.workersToDelete.all(pod, {is_own} || {is_kept}))"
    )


def _admission(plan: ClusterPlan) -> Iterator[Manifest]:
    version = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["ray.io"],
        "apiVersions": ["*"],
        "resources": ["rayclusters"],
        "operations": ["UPDATE"],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "the-account-of-jobs", "expression": f"request.userInfo.username == '{plan.account}'"}
        ],
        "validations": [
            {"expression": SCALES_ONLY, "message": "a job may change nothing but the worker groups"},
            {
                "expression": SAME_GROUPS,
                "message": "a job may scale worker groups, and change nothing else of them",
            },
            {
                "expression": own_pods(plan.name),
                "message": "a job may name pods of a worker group to go, and no others of the namespace",
            },
            {
                "expression": SAME_ABOUT,
                "message": "a job may note its orders, and change nothing else about the RayCluster",
            },
        ],
    }
    yield _object(version, "ValidatingAdmissionPolicy", plan, cluster_wide=True, spec=spec)
    binding = {"policyName": f"{plan.namespace}-{plan.name}", "validationActions": ["Deny"]}
    yield _object(version, "ValidatingAdmissionPolicyBinding", plan, cluster_wide=True, spec=binding)


def _network(plan: ClusterPlan) -> Manifest:
    """Only the cluster's own pods reach its pods; `kubectl port-forward` comes through the kubelet."""
    own = {"matchLabels": {CLUSTER_LABEL: plan.name}}
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    return _object("networking.k8s.io/v1", "NetworkPolicy", plan, spec=spec)


def _ray_cluster(plan: ClusterPlan) -> Manifest:
    head = {
        "rayStartParams": {"num-cpus": "0"},
        "template": _pod(plan, "ray-head", PodSize(2, "4Gi"), _stays(plan), is_head=True),
    }
    spec = {
        "rayVersion": plan.ray_version,
        "enableInTreeAutoscaling": False,
        "authOptions": {"mode": "token"},
        "headGroupSpec": head,
        "workerGroupSpecs": [
            _group(plan, RELIABLE, "reliable", plan.reliable_replicas, _stays(plan)),
            _group(plan, SPOT, "transient", plan.spot_replicas, _on_spot(plan)),
        ],
    }
    return _object("ray.io/v1", "RayCluster", plan, spec=spec)


def _group(plan: ClusterPlan, name: str, tier: str, replicas: int, where: Manifest) -> Manifest:
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": plan.most,
        "labels": {"tier": tier},
        "rayStartParams": {},
        "template": _pod(plan, "ray-worker", plan.size, where),
    }


def _stays(plan: ClusterPlan) -> Manifest:
    """On any nodes but spot ones."""
    match = {"key": plan.spot.key, "operator": "NotIn", "values": [plan.spot.value]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [match]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _on_spot(plan: ClusterPlan) -> Manifest:
    spot = plan.spot
    where: Manifest = {"nodeSelector": {spot.key: spot.value}}
    if spot.is_tainted:
        taint = {"key": spot.key, "operator": "Equal", "value": spot.value, "effect": "NoSchedule"}
        where["tolerations"] = [taint]
    return where | {"terminationGracePeriodSeconds": spot.grace_s}


def _pod(
    plan: ClusterPlan, container: str, size: PodSize, where: Manifest, *, is_head: bool = False
) -> Manifest:
    resources = {"cpu": str(size.cpus), "memory": size.memory}
    runs: Manifest = {
        "name": container,
        "image": plan.image,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": dict(UNPRIVILEGED),
        "env": [{"name": name, "value": value} for name, value in TLS_VARIABLES.items()],
        "volumeMounts": [{"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}],
    }
    if not is_head:
        seconds = where.get("terminationGracePeriodSeconds", 30) - MARGIN_S
        runs["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/bash", "-lc", leave(seconds)]}}}
    account: Manifest = {"automountServiceAccountToken": is_head}
    if is_head:
        account["serviceAccountName"] = plan.name
    user = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 100, "fsGroup": 100}
    secure = {"securityContext": user | {"seccompProfile": {"type": "RuntimeDefault"}}}
    certified = {"initContainers": [_certifies(plan, is_head)], "volumes": _volumes(plan)}
    return {"spec": {**account, **secure, **where, **certified, "containers": [runs]}}


UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
TLS_VARIABLES = {
    "RAY_USE_TLS": "1",
    "RAY_TLS_CA_CERT": f"{TLS_FOLDER}/{CA}",
    "RAY_TLS_SERVER_CERT": f"{TLS_FOLDER}/{CERTIFICATE}",
    "RAY_TLS_SERVER_KEY": f"{TLS_FOLDER}/{KEY}",
}


def _certifies(plan: ClusterPlan, is_head: bool) -> Manifest:
    """The container that comes first. KubeRay adds its own after it, which waits for the head with Ray's variables."""
    command = [*("python", "-m", "bidbrain.kubernetes.certify"), f"--authority={AUTHORITY_FOLDER}"]
    command += [f"--to={TLS_FOLDER}", *(f"--name={each}" for each in plan.head_names if is_head)]
    small = {"cpu": "250m", "memory": "512Mi"}
    return {
        "name": "certify",
        "image": plan.image,
        "command": command,
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"requests": dict(small), "limits": dict(small)},
        "securityContext": dict(UNPRIVILEGED),
        "volumeMounts": [
            {"name": "authority", "mountPath": AUTHORITY_FOLDER, "readOnly": True},
            {"name": "tls", "mountPath": TLS_FOLDER},
        ],
    }


def _volumes(plan: ClusterPlan) -> list[Manifest]:
    """The authority, for the group of the pod's user to read; the pod's own certificate, in memory."""
    secret = {"secretName": plan.authority, "defaultMode": 0o440}
    return [
        {"name": "authority", "secret": secret},
        {"name": "tls", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]


def leave(seconds: int) -> str:
    """The shell command before a worker's container is stopped: tell Ray, then wait until its node has left.

    Ray passes the drain on to the run, with or without a market; the node ends once nothing runs on it.
    """
    return (
        'ray drain-node --address="$RAY_ADDRESS" --reason=DRAIN_NODE_REASON_PREEMPTION '
        f'--reason-message="the pod was deleted" --deadline-remaining-seconds={seconds}; '
        f"for i in $(seq {seconds}); do pgrep -x raylet > /dev/null || exit 0; sleep 1; done"
    )
