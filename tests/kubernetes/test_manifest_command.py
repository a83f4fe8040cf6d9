"""`proteus k8s cluster`: what it prints can be applied, and bad options are one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.printed import command, the


def test_the_command_prints_what_can_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(
        capsys,
        "template",
        "--cloud",
        "aks",
        "--image",
        "reg/p:1",
        "--name",
        "nets",
        "--spot",
        "3",
        "--cpus",
        "8",
        "--grace-s",
        "60",
    )
    assert (code, err) == (0, "")
    spec = the("RayCluster", list(yaml.safe_load_all(out)))["spec"]
    assert [group["replicas"] for group in spec["workerGroupSpecs"]] == [0, 3]
    assert (
        spec["workerGroupSpecs"][1]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "8"
    )
    assert spec["workerGroupSpecs"][1]["template"]["spec"]["terminationGracePeriodSeconds"] == 60
    assert "#     pools: {spot: {vcpus: 8, usd_per_h: DOLLARS}}" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "missing --cloud, expected whose spot nodes these are: gke, eks, karpenter, aks"),
        (["--cloud", "gke"], "missing --image, expected the image that `proteus k8s image` prepares"),
        (
            ["--cloud", "gke", "--image", "x", "--name", "A b"],
            "--name: found 'A b', expected up to 40 of a-z",
        ),
        (
            ["--cloud", "gke", "--image", "x", "--name", "on-demand"],
            "--name: found on-demand, expected another name",
        ),
        (
            ["--cloud", "gke", "--image", "x", "--memory", "lots"],
            "--memory: found 'lots', expected an amount such as",
        ),
        (["--cloud", "gke", "--image", "x", "--spot", "9", "--most", "8"], "found 9 pods from the beginning"),
        *(
            (
                ["--cloud", "gke", "--image", name],
                f"--image: found {name!r}, expected a name such as registry.",
            )
            for name in ("Team/proteus", "reg/p:1:2", "reg/p 1", "https://reg/p", "reg/p@sha256:12", "")
        ),
        (
            ["--cloud", "gke", "--image", "x", "--domain", "Cluster_local"],
            "--domain: found 'Cluster_local', expected",
        ),
    ],
)
def test_bad_options_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(capsys, "template", *words)
    assert (code, out) == (2, "")
    assert sentence in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [
        "localhost:5000/p",
        "123.dkr.ecr.us-east-1.amazonaws.com/team/p:1.0_x",
        "eu.gcr.io/p@sha256:" + "0a" * 32,
    ],
)
def test_the_names_that_registries_give_are_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "template", "--cloud", "gke", "--image", name)
    assert (code, name in out) == (0, True)


def test_the_image_s_folder_holds_all_that_its_dockerfile_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "image"
    code, out, _ = command(capsys, "image", str(folder))
    assert code == 0 and f"docker build -t IMAGE {folder}" in out
    lines = (folder / "Dockerfile").read_text().splitlines()
    (copied,) = (line.split()[2:-1] for line in lines if line.startswith("COPY"))
    assert {*copied, "Dockerfile"} == {path.name for path in folder.iterdir()}
    (base,) = (line for line in lines if line.startswith("ARG RAY_IMAGE="))
    ray = next(
        line for line in (folder / "constraints.txt").read_text().splitlines() if line.startswith("ray==")
    )
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    assert base == f"ARG RAY_IMAGE=rayproject/ray:{ray.removeprefix('ray==')}-{python}"
    assert lines[-1] == "USER 1000"
    assert command(capsys, "template", "--dockerfile")[1] == (folder / "Dockerfile").read_text()
    code, _, err = command(capsys, "image", str(folder))
    assert (code, err) == (2, f"proteus: {folder} is there already, expected a new or empty folder\n")
