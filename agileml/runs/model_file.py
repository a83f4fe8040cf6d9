"""model.safetensors: the parameters of a run in the form that safetensors takes, and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from agileml.application import InputError


def save_model(path: Path, model: Mapping[str, Any], digest: str) -> None:
    """Write NumPy arrays or torch tensors with the `params_sha256` of the run. Raises OSError, SafetensorError, and
    InputError for values of other kinds."""
    metadata = {"params_sha256": digest}
    if all(isinstance(value, np.ndarray) for value in model.values()):
        save_file(
            {key: np.asarray(table, order="C") for key, table in model.items()}, path, metadata=metadata
        )
        return
    from safetensors.torch import save_file as save_tensors

    save_tensors(_apart(model), path, metadata={**metadata, "format": "pt"})


def _apart(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model as torch tensors without gaps, of which no two lie in one memory: safetensors takes no others."""
    import torch

    found: dict[str, Any] = {}
    memories = set()
    for key, value in model.items():
        if not isinstance(value, torch.Tensor | np.ndarray):
            raise InputError(
                f"as_model(): found {key!r} of type {type(value).__name__}, expected NumPy arrays or torch tensors"
            )
        tensor = torch.as_tensor(value).detach().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        found[key] = tensor.clone() if memory in memories else tensor
        memories.add(memory)
    return found


def params_sha256(tables: Mapping[str, np.ndarray]) -> str:
    """SHA-256, in hex, of the parameters.

    The bytes hashed are, for every table in the ascending order of their names (as UTF-8 bytes):
    the name as UTF-8, a zero byte, the dtype's name ("float32"), a zero byte, the shape in decimal with commas
    ("610,16"), a zero byte, and the values in C order, little-endian.
    """
    digest = hashlib.sha256()
    for name in sorted(tables, key=str.encode):
        table = np.asarray(tables[name])
        little = np.ascontiguousarray(table, dtype=table.dtype.newbyteorder("<"))
        shape = ",".join(str(length) for length in table.shape)
        digest.update(f"{name}\0{table.dtype.name}\0{shape}\0".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
