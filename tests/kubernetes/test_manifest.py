"""The manifests: valid objects of Kubernetes and KubeRay, with rights that suffice and no more."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cryptography import x509

from agileml.config.job import load
from agileml.config.market import KubernetesMarketConfig
from agileml.config.text import ConfigError
from agileml.market.setup import set_up
from bidbrain.history.prices import Market
from bidbrain.kubernetes.certify import main as certify
from bidbrain.kubernetes.kuberay import KubeRay, PodPlace
from bidbrain.kubernetes.manifest import (
    AUTHORITY_FOLDER,
    TLS_FOLDER,
    ClusterPlan,
    PodSize,
    Provider,
    leave,
    manifests,
    text,
)
from tests.kubernetes.api_server import served
from tests.kubernetes.ground import PRICES, SPOT, STAYS, Ground, make_setting, order, soon
from tests.kubernetes.kuberay_operator import operating
from tests.kubernetes.printed import command, the
from tests.kubernetes.rights import allows, granted, refusal

PLAN = ClusterPlan("ray", "here", "registry/proteus:1", Provider.EKS, "2.60.0", PodSize(4, "16Gi"))
VERSION = "1.37"
# Of KubeRay's reference of ray.io/v1: (fields, those that must be there).
CLUSTER_FIELDS = (
    {"rayVersion", "enableInTreeAutoscaling", "authOptions", "headGroupSpec", "workerGroupSpecs"},
    {"headGroupSpec"},
)
HEAD_FIELDS = (
    {"rayStartParams", "template", "labels", "resources", "serviceType"},
    {"rayStartParams", "template"},
)
GROUP_FIELDS = (
    {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "labels", "resources"),
        *("rayStartParams", "template", "scaleStrategy", "idleTimeoutSeconds", "suspend"),
    },
    {"groupName", "minReplicas", "maxReplicas", "template"},
)
OWN = PLAN.account


@pytest.mark.parametrize("provider", Provider)
def test_every_object_fits_its_schema(provider: Provider) -> None:
    found = list(yaml.safe_load_all(text(replace(PLAN, provider=provider))))
    assert found == manifests(replace(PLAN, provider=provider))
    for each in found:
        if each["kind"] != "RayCluster":
            kubernetes_validate.validate(each, VERSION, strict=True)
    spec = the("RayCluster", found)["spec"]
    head, groups = spec["headGroupSpec"], spec["workerGroupSpecs"]
    for item, (fields, needed) in [
        (spec, CLUSTER_FIELDS),
        (head, HEAD_FIELDS),
        *((g, GROUP_FIELDS) for g in groups),
    ]:
        assert needed <= set(item) <= fields
    for item in (head, *groups):
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "x"},
            "template": item["template"],
        }
        kubernetes_validate.validate(template, VERSION, strict=True)
        assert all(isinstance(value, str) for value in item["rayStartParams"].values())
        assert "labels" not in item["rayStartParams"], "KubeRay refuses them there"


def test_the_example_s_config_names_what_the_manifests_make() -> None:
    job = load(Path(__file__).resolve().parents[2] / "configs" / "kubernetes.yaml", [])
    market = job.market
    assert isinstance(market, KubernetesMarketConfig)
    groups = the("RayCluster", manifests(PLAN))["spec"]["workerGroupSpecs"]
    assert {group["groupName"] for group in groups} == {*market.pools, market.reliable.group}
    plan = set_up(job, "demo", "run", 1_800_000_000).plan
    assert plan.setting.markets == (Market("spot", "proteus"),)
    assert (plan.setting.reliable.instance_type, plan.setting.reliable.on_demand) == ("reliable", 200_000)
    assert plan.setting.by_market[Market("spot", "proteus")].on_demand == 200_000


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("market.pools={}", "market.pools: found an empty mapping, expected a worker group at least"),
        (
            "market.reliable={group: spot, vcpus: 4, usd_per_h: 0.2}",
            "expected another worker group than spot",
        ),
        (
            "market.reliable={vcpus: 4, usd_per_h: 0.06}",
            "expected a higher price per vCPU than that of spot, or no",
        ),
        ("market.budget_usd=null", "market.budget_usd: missing, expected the most that this job may cost"),
        (
            "address=null",
            "address: missing, expected the cluster that the pods join: auto in the RayCluster's head",
        ),
        (
            "market.policy=proteus",
            "market.policy: found proteus, which learns from a history of bids, expected on_d",
        ),
    ],
)
def test_a_config_that_cannot_work_is_one_sentence(change: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_up(load(Path("configs/kubernetes.yaml"), [change]), "demo", "run", 1_800_000_000)
    assert sentence in str(caught.value)


def test_the_schema_check_can_fail() -> None:
    role = copy.deepcopy(the("Role", manifests(PLAN)))
    role["rules"][0]["verb"] = role["rules"][0].pop("verbs")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(role, VERSION, strict=True)


@pytest.mark.parametrize(
    ("provider", "label", "seconds"),
    [
        (Provider.GKE, {"cloud.google.com/gke-spot": "true"}, 15),
        (Provider.EKS, {"eks.amazonaws.com/capacityType": "SPOT"}, 110),
        (Provider.KARPENTER, {"karpenter.sh/capacity-type": "spot"}, 110),
        (Provider.AKS, {"kubernetes.azure.com/scalesetpriority": "spot"}, 25),
    ],
)
def test_only_the_pool_is_on_spot_nodes(provider: Provider, label: dict[str, str], seconds: int) -> None:
    spec = the("RayCluster", manifests(replace(PLAN, provider=provider)))["spec"]
    reliable, spot = spec["workerGroupSpecs"]
    ((key, value),) = label.items()
    assert spot["template"]["spec"]["nodeSelector"] == label
    assert spot["template"]["spec"]["terminationGracePeriodSeconds"] == seconds
    for item in (spec["headGroupSpec"], reliable):
        affinity = item["template"]["spec"]["affinity"]["nodeAffinity"]
        ((term,),) = (
            each["matchExpressions"]
            for each in affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        )
        assert term == {"key": key, "operator": "NotIn", "values": [value]}
    assert (reliable["labels"], spot["labels"]) == ({"tier": "reliable"}, {"tier": "transient"})


def test_tokens_are_on_and_only_the_head_may_ask_the_api_server() -> None:
    found = manifests(PLAN)
    spec = the("RayCluster", found)["spec"]
    assert spec["authOptions"] == {"mode": "token"} and spec["enableInTreeAutoscaling"] is False
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", "the head trains nothing"
    pods = {"head": spec["headGroupSpec"], **{g["groupName"]: g for g in spec["workerGroupSpecs"]}}
    has_token = {name: pod["template"]["spec"]["automountServiceAccountToken"] for name, pod in pods.items()}
    assert has_token == {"head": True, "reliable": False, "spot": False}
    for pod in pods.values():
        (container,) = pod["template"]["spec"]["containers"]
        assert pod["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    ((ingress,),) = (each["from"] for each in the("NetworkPolicy", found)["spec"]["ingress"])
    assert ingress == {"podSelector": {"matchLabels": {"ray.io/cluster": "ray"}}}


def test_the_rights_are_what_a_job_needs_and_no_more(tmp_path: Path) -> None:
    """A job's whole life within the rights; each of them is used."""
    found = manifests(PLAN)
    rights = granted(found)
    cluster = copy.deepcopy(the("RayCluster", found))
    with served(tmp_path) as server:
        server.allowed = lambda right: allows(rights, right)
        server.put("rayclusters", cluster)
        with operating(server) as operator:
            _live(Ground(server, operator))
        assert set(server.seen) == {f"{verb} {resource}" for verb, resource, _ in rights}
    assert rights == {
        *((verb, "rayclusters", "ray") for verb in ("get", "patch")),
        *((verb, resource, "") for verb in ("get", "list", "watch") for resource in ("pods", "nodes")),
    }


def _live(ground: Ground) -> None:
    """Buys, lives through two losses, and gives everything back."""
    place = PodPlace("here", "ray", {SPOT: "spot", STAYS: "reliable"}, PRICES)
    cloud = KubeRay(ground.api, place, "job", make_setting(), ground.now_s)
    instances = cloud.acquire(order("a", 1, STAYS)) + cloud.acquire(order("b", 2))
    lost, nodeless = (each.instance_id for each in instances[1:])
    ground.server.remove("pods", lost)
    ground.server.remove("nodes", f"node-{nodeless}")
    soon(ground, lambda: len(cloud.ended((lost, nodeless))) == 2)
    cloud.release(tuple(each.instance_id for each in cloud.held()))
    cloud.close()


def test_each_pod_gets_a_certificate_and_only_its_init_container_the_authority() -> None:
    spec = the("RayCluster", manifests(PLAN))["spec"]
    for item in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = item["template"]["spec"]
        (first,), (runs,) = pod["initContainers"], pod["containers"]
        assert {mount["name"] for mount in first["volumeMounts"]} == {"authority", "tls"}
        assert [(mount["name"], mount["readOnly"]) for mount in runs["volumeMounts"]] == [("tls", True)]
        assert first["securityContext"] == runs["securityContext"]
        secret = next(each["secret"] for each in pod["volumes"] if each["name"] == "authority")
        assert secret == {"secretName": "ray-authority", "defaultMode": 0o440}, "for fsGroup to read"
        names = [word for word in first["command"] if word.startswith("--name=")]
        assert bool(names) == (item is spec["headGroupSpec"]), "workers go by their addresses"
        assert "RAY_USE_TLS" in {each["name"] for each in runs["env"]}
    head = spec["headGroupSpec"]["template"]["spec"]["initContainers"][0]["command"]
    assert "--name=ray-head-svc.here.svc.cluster.local" in head, "what KubeRay has workers connect to"


def test_the_init_container_s_command_makes_what_ray_s_variables_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The secret of `proteus k8s authority`, a pod's command and its variables, put together as the kubelet does."""
    code, out, err = command(capsys, "authority", "--name", "ray", "--namespace", "here")
    secret = yaml.safe_load(out)
    assert (code, err, secret["metadata"]) == (0, "", {"name": "ray-authority", "namespace": "here"})
    kubernetes_validate.validate(secret, VERSION, strict=True)
    mounted, tls = tmp_path / "authority", tmp_path / "tls"
    for folder in (mounted, tls):
        folder.mkdir()
    for name, content in secret["stringData"].items():
        (mounted / name).write_text(content)
    spec = the("RayCluster", manifests(PLAN))["spec"]["headGroupSpec"]["template"]["spec"]
    words = spec["initContainers"][0]["command"][3:]
    places = {AUTHORITY_FOLDER: str(mounted), TLS_FOLDER: str(tls)}
    for inside, here in places.items():
        words = [word.replace(inside, here) for word in words]
    for _ in range(2):  # the kubelet may start it again
        certify(words, {"POD_IP": "10.1.2.3"})
    variables = {each["name"]: each["value"] for each in spec["containers"][0]["env"]}
    files = {name: Path(value.replace(TLS_FOLDER, str(tls))) for name, value in variables.items()}
    assert variables.pop("RAY_USE_TLS") == "1"
    assert {files[name] for name in variables} == set(tls.iterdir())
    pem = files["RAY_TLS_SERVER_CERT"].read_bytes()
    own = x509.load_pem_x509_certificate(pem)
    own.verify_directly_issued_by(x509.load_pem_x509_certificate(files["RAY_TLS_CA_CERT"].read_bytes()))
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert str(names.get_values_for_type(x509.IPAddress)[0]) == "10.1.2.3"
    assert "ray-head-svc.here.svc.cluster.local" in names.get_values_for_type(x509.DNSName)
    secret_line = next(iter(secret["stringData"].values())).split("PRIVATE KEY-----\n")[1].split("\n")[0]
    assert not any(secret_line in path.read_text() for path in tls.iterdir())


@pytest.mark.parametrize(
    ("ip", "content", "sentence"),
    [
        ("", "x", "POD_IP: found '', expected the address of this pod"),
        ("10.0.0.1", "x", "the cluster's authority: found 1 characters, expected the PEM"),
        ("10.0.0.1", None, "authority.pem: No such file or directory"),
    ],
)
def test_a_pod_without_a_certificate_says_why(
    tmp_path: Path, ip: str, content: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / "authority.pem").write_text(content)
    with pytest.raises(SystemExit) as ended:
        certify([f"--authority={tmp_path}", f"--to={tmp_path}"], {"POD_IP": ip})
    assert sentence in str(ended.value)


def admitted(change: Callable[[Any], None], user: str = OWN) -> str | None:
    found = manifests(PLAN)
    old = the("RayCluster", found)
    new = copy.deepcopy(old)
    change(new)
    return refusal(found, user, old, new)


def test_a_job_may_scale() -> None:
    def scale(item: Any) -> None:
        going = {"workersToDelete": ["ray-spot-worker-x7k2p"]}
        item["spec"]["workerGroupSpecs"][1] |= {"replicas": 3, "scaleStrategy": going}
        item["metadata"]["annotations"] = {"proteus/orders": "{}"}

    assert admitted(scale) is None


def _going(*pods: str, group: int = 1) -> Callable[[Any], None]:
    """Names pods to go in a worker group."""
    return lambda item: item["spec"]["workerGroupSpecs"][group].update(
        scaleStrategy={"workersToDelete": list(pods)}
    )


@pytest.mark.parametrize("group", ["a-group-with-a-name-that-is-too-long-for-kuberay-and-cut", "Spot"])
def test_pods_of_a_group_whose_name_kuberay_changes_may_go(group: str) -> None:
    found = manifests(PLAN)
    old = the("RayCluster", found)
    old["spec"]["workerGroupSpecs"][1]["groupName"] = group
    pod = f"ray-{group}"[:50].lower() + "-worker-x7k2p"
    for name, is_refused in ((pod, False), ("another-spot-worker-x7k2p", True), ("ray-head-x7k2p", True)):
        new = copy.deepcopy(old)
        _going(name)(new)
        assert (refusal(found, OWN, old, new) is not None) == is_refused


def test_pods_that_somebody_else_named_keep_no_job_from_scaling() -> None:
    found = manifests(PLAN)
    old = the("RayCluster", found)
    _going("a-pod-of-the-operator-s")(old)
    new = copy.deepcopy(old)
    new["spec"]["workerGroupSpecs"][0]["replicas"] = 2
    assert refusal(found, OWN, old, new) is None


@pytest.mark.parametrize(
    "attack",
    [
        _going("database-0"),
        _going("ray-spot-worker-x7k2p", "ray-head-x7k2p"),
        _going("ray-2-spot-worker-x7k2p"),
        _going("ray-spot-worker-x7k2p", group=0),
        lambda item: _container(item, 1).update(image="somebody/else:1"),
        lambda item: _pod(item, 1).update(serviceAccountName="admin"),
        lambda item: _pod(item, 0).update(hostPID=True),
        lambda item: _container(item, 1).pop("securityContext"),
        lambda item: _container(item, None).update(image="somebody/else:1"),
        lambda item: item["spec"]["workerGroupSpecs"].append(
            copy.deepcopy(item["spec"]["workerGroupSpecs"][1])
        ),
        lambda item: item["spec"]["workerGroupSpecs"].pop(),
        lambda item: item["spec"]["workerGroupSpecs"][1].update(maxReplicas=999),
        lambda item: item["spec"]["workerGroupSpecs"][1].update(numOfHosts=9),
        lambda item: item["spec"]["workerGroupSpecs"][1].update(groupName="other"),
        lambda item: item["spec"].update(workerGroupSpecs=[item["spec"]["workerGroupSpecs"][0]] * 2),
        lambda item: item["spec"].update(authOptions={"mode": "disabled"}),
        lambda item: item["spec"].pop("authOptions"),
        lambda item: item["spec"].update(headServiceAnnotations={"a": "b"}),
        lambda item: item["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "mine"}),
        lambda item: item["metadata"].update(finalizers=["nobody/ends-this"]),
        lambda item: item["metadata"].update(annotations={"ray.io/overwrite-container-cmd": "true"}),
    ],
)
def test_a_job_may_change_nothing_else(attack: Callable[[Any], None]) -> None:
    said = admitted(attack)
    assert said is not None and said.startswith("a job may ")
    assert admitted(attack, "the operator") is None, "others are not its business"


def _pod(item: Any, group: int | None) -> Any:
    spec = item["spec"]
    found = spec["headGroupSpec"] if group is None else spec["workerGroupSpecs"][group]
    return found["template"]["spec"]


def _container(item: Any, group: int | None) -> Any:
    return _pod(item, group)["containers"][0]


def test_the_words_before_a_pod_stops_are_a_shell_s_and_end_with_the_raylet(tmp_path: Path) -> None:
    """With a `ray` that notes what it is told, and no raylet: it ends at once."""
    ray = tmp_path / "ray"
    ray.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/told\n')
    ray.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_ADDRESS": "head:6379"}
    words = leave(105).replace("pgrep -x raylet", "pgrep -x no-such-raylet")
    done = subprocess.run(["/bin/bash", "-c", words], env=environment, timeout=10, check=False)
    assert done.returncode == 0
    assert (tmp_path / "told").read_text().splitlines() == [
        "drain-node", "--address=head:6379", "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=the pod was deleted", "--deadline-remaining-seconds=105",
    ]  # fmt: skip
