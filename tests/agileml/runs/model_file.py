"""The hash of what a model.safetensors holds."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from agileml.runs.model_file import params_sha256


def model_sha256(path: Path) -> str:
    """`params_sha256` of its tables."""
    with safe_open(path, framework="numpy") as model:
        return params_sha256({name: model.get_tensor(name) for name in model.keys()})  # noqa: SIM118
