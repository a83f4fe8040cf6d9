"""Tensors by name in files, and a digest of their bits."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.whole_file import whole_file


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, whole or not at all. Raises OSError with the name of the file."""
    with whole_file(path) as partial:
        try:
            save_file({name: value.detach().contiguous() for name, value in tensors.items()}, partial)
        except SafetensorError as error:  # of a full disk, too
            raise OSError(errno.EIO, str(error)) from None


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
