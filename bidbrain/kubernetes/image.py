"""The Dockerfile of the image that the pods run: Ray's own image, which KubeRay's probes fit, and our wheel. Pure."""

from __future__ import annotations

CONSTRAINTS = "constraints.txt"


def dockerfile(ray_version: str, python: tuple[int, int], wheel: str) -> str:
    """The text. python: the version that the wheel was made with; wheel: its file, beside the Dockerfile."""
    tag = f"{ray_version}-py{python[0]}{python[1]}"
    return f"""\
# The image of a RayCluster's pods: Ray {ray_version}, Proteus and what it depends on, in the versions of where this was
# written. `proteus k8s image DIR` writes it beside the wheel and the constraints; then
#   docker build -t IMAGE DIR && docker push IMAGE
# For GPUs: --build-arg RAY_IMAGE=rayproject/ray:{tag}-gpu --build-arg TORCH_INDEX=https://pypi.org/simple
ARG RAY_IMAGE=rayproject/ray:{tag}
FROM ${{RAY_IMAGE}}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --chown=1000:100 {CONSTRAINTS} {wheel} /tmp/proteus/
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \\
        -c /tmp/proteus/{CONSTRAINTS} /tmp/proteus/{wheel} \\
    && rm -r /tmp/proteus
ENV RAY_USAGE_STATS_ENABLED=0
USER 1000
"""
