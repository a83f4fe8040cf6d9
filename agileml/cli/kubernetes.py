"""`proteus k8s template | authority | image`: manifests, certificates and image of a RayCluster on spot nodes."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from bidbrain.kubernetes.manifest import Provider

k8s = typer.Typer(
    name="k8s",
    no_args_is_help=True,
    help="Manifests and an image for a RayCluster on Kubernetes' spot nodes.",
)
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")  # KubeRay adds to it, and a label holds 63 characters
PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"  # of an image's name
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"  # of DNS
IMAGE = re.compile(
    rf"(?:(?:localhost|{LABEL}(?:\.{LABEL})+|{LABEL}(?:\.{LABEL})*:[0-9]+)/)?{PART}(?:/{PART})*"
    r"(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?(?:@[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
DOMAIN = re.compile(rf"(?=.{{1,253}}$){LABEL.replace('A-Z', '')}(?:\.{LABEL.replace('A-Z', '')})*")
MEMORY = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?")


def mount(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(k8s)


@k8s.command()
def template(
    cloud: Annotated[
        Provider | None,
        typer.Option(help="The cloud: gke, eks (managed node groups), karpenter or aks."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="The pods' image, as your registry names it; see `proteus k8s image`.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the RayCluster and of all that belongs to it.")
    ] = "proteus",
    namespace: Annotated[str, typer.Option(help="An existing namespace for it.")] = "default",
    cpus: Annotated[int, typer.Option(min=1, help="CPUs of a worker's pod.")] = 4,
    memory: Annotated[str, typer.Option(help="Memory of a worker's pod.")] = "16Gi",
    most: Annotated[int, typer.Option(min=1, help="The most pods of a worker group.")] = 16,
    reliable: Annotated[
        int, typer.Option(min=0, help="Reliable pods from the beginning, for runs without a market.")
    ] = 0,
    spot: Annotated[
        int, typer.Option(min=0, help="Spot pods from the beginning, for runs without a market.")
    ] = 0,
    grace_s: Annotated[
        int | None,
        typer.Option(
            min=10, max=600, help="Seconds that a spot pod has to leave.", show_default="what the cloud gives"
        ),
    ] = None,
    domain: Annotated[str, typer.Option(help="DNS domain of your Kubernetes cluster.")] = "cluster.local",
    dockerfile: Annotated[
        bool, typer.Option("--dockerfile", help="Print the Dockerfile of the image instead.")
    ] = False,
) -> None:
    """Print the manifests of a RayCluster and of its rights, for `kubectl apply -f -`."""
    if dockerfile:
        print(_dockerfile(f"proteus_train-{version('proteus-train')}-py3-none-any.whl"), end="")
        return
    from bidbrain.kubernetes.manifest import ClusterPlan, PodSize, text

    if cloud is None:
        known = ", ".join(Provider)
        raise typer.BadParameter(f"missing --cloud, expected whose spot nodes these are: {known}")
    if image is None:
        raise typer.BadParameter(
            "missing --image, expected the image that `proteus k8s image` prepares, in a registry"
        )
    _check_names(name, namespace)
    _check_image(image, domain)
    if not MEMORY.fullmatch(memory):
        raise typer.BadParameter(f"--memory: found {memory!r}, expected an amount such as 16Gi")
    if max(reliable, spot) > most:
        raise typer.BadParameter(
            f"found {max(reliable, spot)} pods from the beginning, expected at most --most {most}"
        )
    size = PodSize(cpus, memory)
    plan = ClusterPlan(
        *(name, namespace, image, cloud, version("ray"), size, most, reliable, spot, grace_s, domain)
    )
    print(text(plan), end="")


@k8s.command()
def authority(
    name: Annotated[str, typer.Option(help="Name of the RayCluster.")] = "proteus",
    namespace: Annotated[str, typer.Option(help="Its namespace.")] = "default",
) -> None:
    """Print a secret with a new authority of certificates for Ray's TLS, for `kubectl create -f -`."""
    import time

    import yaml

    from bidbrain.aws.stack.authority import Authority
    from bidbrain.kubernetes.manifest import authority_secret

    _check_names(name, namespace)
    if sys.stdout.isatty():
        raise typer.BadParameter(
            "found a terminal, expected a pipe to `kubectl create -f -`: this prints a private key"
        )
    pem = Authority.made(name, time.time()).text()
    print(yaml.safe_dump(authority_secret(name, namespace, pem), sort_keys=False), end="")


def _check_names(name: str, namespace: str) -> None:
    from bidbrain.history.prices import ON_DEMAND_ZONE

    if name == ON_DEMAND_ZONE:
        raise typer.BadParameter(
            f"--name: found {name}, expected another name, as this is that of pods that stay"
        )
    for option, found in (("--name", name), ("--namespace", namespace)):
        if not NAME.fullmatch(found):
            raise typer.BadParameter(
                f"{option}: found {found!r}, expected up to 40 of a-z, 0-9 and dash, a letter first"
            )


def _check_image(image: str, domain: str) -> None:
    if not IMAGE.fullmatch(image):
        raise typer.BadParameter(
            f"--image: found {image!r}, expected a name such as registry.example.com/team/proteus:1.0, in lower case"
        )
    if not DOMAIN.fullmatch(domain):
        raise typer.BadParameter(
            f"--domain: found {domain!r}, expected words of a-z, 0-9 and dash with dots between, such as cluster.local"
        )


@k8s.command()
def image(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
) -> None:
    """Write the Dockerfile of the pods' image, with the wheel of this installation, for `docker build`."""
    from agileml.aws.wheel import build_wheel
    from bidbrain.kubernetes.image import CONSTRAINTS

    try:
        is_new = not folder.exists()
        if not is_new and (not folder.is_dir() or any(folder.iterdir())):
            raise typer.BadParameter(f"{folder} is there already, expected a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be made a folder: {error.strerror}") from None
    wheel = build_wheel()
    files = {
        wheel.name: wheel.content,
        CONSTRAINTS: wheel.constraints.encode(),
        "Dockerfile": _dockerfile(wheel.name).encode(),
    }
    for name, content in files.items():
        try:
            (folder / name).write_bytes(content)
        except OSError as error:
            for made in files:
                (folder / made).unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
            typer.echo(f"proteus: {folder / name} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(1) from None
    print(f"docker build -t IMAGE {folder} && docker push IMAGE")


def _dockerfile(wheel: str) -> str:
    from bidbrain.kubernetes.image import dockerfile

    return dockerfile(version("ray"), sys.version_info[:2], wheel)
