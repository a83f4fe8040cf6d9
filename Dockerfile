# An image with Proteus and Ray, for a job on one host or as a node of a Ray cluster:
#   docker build -t proteus:local .
#   docker run --rm --init --shm-size=2g -v "$PWD":/work proteus:local run configs/demo.yaml
# docs/guides/ray-cluster.md shows how its containers become the nodes of a cluster.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY configs ./configs
COPY straggler ./straggler
COPY bidbrain ./bidbrain
COPY pipeline ./pipeline
COPY agileml ./agileml
RUN ["python", "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", "/wheels", "."]

FROM python:3.11-slim-bookworm
# The CPU build of PyTorch. For GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0
COPY constraints.txt /tmp/constraints.txt
# Packages first, in the versions that are tested: this layer stays when only our own code changes.
COPY setup.cfg /tmp/setup.cfg
RUN python -c "import configparser; c = configparser.ConfigParser(); c.read('/tmp/setup.cfg'); print(c['options']['install_requires'])" \
        > /tmp/requirements.txt \
    && python -m pip install --no-cache-dir --no-compile --extra-index-url "$TORCH_INDEX" \
        -r /tmp/requirements.txt -c /tmp/constraints.txt \
    && rm /tmp/requirements.txt /tmp/constraints.txt /tmp/setup.cfg
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && useradd --create-home --uid 1000 proteus \
    && mkdir /work \
    && chown proteus /work
USER proteus
WORKDIR /work
# Give `docker run` the option --init: process 1 must collect what Ray leaves when its nodes are killed.
ENTRYPOINT ["proteus"]
CMD ["--help"]
