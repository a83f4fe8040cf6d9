"""Tensors by name in files, and a digest of their bits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, whole or not at all."""
    part = path.with_name(path.name + ".part")
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, part)
    os.replace(part, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors that `write_tensors` wrote."""
    return load_file(path)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes: equal for equal bits."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
