"""Results that plain torch can load: the module's own tensors by name, and optimizer state as torch.optim has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from agileml.application import Array, InputError, Update
from agileml.apps.torch.flat import FlatModule
from agileml.apps.torch.resident.state import TorchOptimizer, parameter_groups


def torch_state(result: str | Path | Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """A state dict for `module` from the result of a run: its tables, or the path of its model.safetensors.

    Parameters that need no gradient, which training does not change, are the module's own if the tables are given, and
    so is what its state dict has beside tensors. Raises InputError when it does not fit.
    """
    if not isinstance(result, Mapping):
        return _read(Path(result), module)
    return state_of(result, FlatModule(module, "module"))


def state_of(tables: Mapping[str, Array], flat: FlatModule) -> dict[str, Any]:
    """As `torch_state`, for a module that is laid out: its parameters may have been frozen since. Raises InputError."""
    by_tensor: dict[int, Tensor] = {}
    for table in flat.tables():
        if table.name not in tables:
            raise InputError(
                f"tables: there is no table {table.name!r}, expected one for this module (of "
                f"{table.columns} elements); found {', '.join(tables) or 'none'}"
            )
        values = np.asarray(tables[table.name])
        if values.size != table.rows * table.columns:
            raise InputError(
                f"tables: table {table.name!r} has {values.size} elements, expected {table.rows * table.columns} for "
                "this module"
            )
        found = torch.from_numpy(np.array(values).reshape(-1))
        for span, tensor in flat.tensors(table.name):
            value = span.of(found)
            value = value if tensor.dtype.is_floating_point else value.round()
            by_tensor[id(tensor)] = value.to(tensor.dtype).clone()
    # state_dict() names a tied tensor once per place, and all of these names are the same object.
    own = flat.module.state_dict(keep_vars=True)
    return {
        name: by_tensor[id(value)] if id(value) in by_tensor else _detached(value)
        for name, value in own.items()
    }


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def exported(tables: Mapping[str, Array], flat: FlatModule) -> dict[str, Tensor]:
    """The state dict as a file can hold it: on the CPU, no two tensors in the same memory, only tensors. Raises
    InputError for a tensor that no file can hold."""
    state = state_of(tables, flat)
    for name, tensor in state.items():
        if isinstance(tensor, Tensor) and not _is_saved(tensor):
            raise InputError(
                f"model.module: {name!r} is a {_form(tensor)} tensor, which model.safetensors cannot hold, expected "
                "another form, or a buffer that is not in the state dict (register_buffer(..., persistent=False))"
            )
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }


def _is_saved(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    try:
        save({"": torch.empty(0, dtype=tensor.dtype)})
    except KeyError:  # safetensors has no name for it
        return False
    return True


def _form(tensor: Tensor) -> str:
    return "sparse" if tensor.layout is not torch.strided else str(tensor.dtype).removeprefix("torch.")


def _read(path: Path, module: nn.Module) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
    except FileNotFoundError:
        raise InputError(f"{path} does not exist, expected the model.safetensors of a run") from None
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} cannot be read ({error}), expected the model.safetensors of a run"
        ) from None
    state = module.state_dict()
    own = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if missing := sorted(own.keys() ^ found.keys()):
        whose = "this module" if missing[0] in own else "the file"
        raise InputError(f"{path}: only {whose} has {missing[0]!r}, expected the model of this module")
    for name, tensor in own.items():
        if tensor.shape != found[name].shape:
            raise InputError(
                f"{path}: {name!r} has shape {tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
            )
    return {**state, **found}


STATES = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}
STATES["adamw"] = STATES["lamb"] = STATES["adam"]


def optimizer_state(
    flat: FlatModule,
    slots: Sequence[Mapping[str, Array]],
    settings: Mapping[str, Any],
    clocks: int,
    factor: float = 1.0,
) -> dict[str, Any]:
    """The state dict of the torch.optim optimizer over `module.parameters()` that has taken the same steps.

    slots: the tables of each array of state. settings: the section `optimizer` of the config. With groups, the first
    group of torch has the parameters without one, then come those of the config in order. factor: of the learning
    rates.
    """
    if settings["kind"] == "torch":
        return TorchOptimizer(flat, settings).state_dict(slots[0], factor)
    optimizer = _in_torch(flat.module, settings)
    names = STATES[settings["kind"]]
    for table in flat.tables():
        if table.update is not Update.GRADIENT:
            continue
        arrays = [torch.from_numpy(np.array(slot[table.name]).reshape(-1)) for slot in slots]
        for span, parameter in flat.tensors(table.name):
            state: dict[str, Any] = {
                name: span.of(array).clone() for name, array in zip(names, arrays, strict=True)
            }
            if settings["kind"] in ("adagrad", "adam", "adamw", "lamb"):
                state["step"] = torch.tensor(float(clocks))
            if state and clocks:
                optimizer.state[parameter] = state
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
        group["lr"] *= factor
    return optimizer.state_dict()


def _in_torch(module: nn.Module, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimizer that a config names, as torch has it."""
    groups = parameter_groups(module.named_parameters(), settings.get("groups", ()))
    shared = {"lr": settings["learning_rate"], "weight_decay": settings["weight_decay"]}
    match settings["kind"]:
        case "sgd":
            return torch.optim.SGD(groups, **shared)
        case "momentum":
            own = {"momentum": settings["momentum"], "nesterov": settings["nesterov"]}
            return torch.optim.SGD(groups, **shared, **own)
        case "adagrad":
            return torch.optim.Adagrad(groups, **shared, eps=settings["epsilon"])
        case "adam" | "adamw" | "lamb" as kind:  # torch has no LAMB: its moments are Adam's
            made = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
            betas = (settings["beta1"], settings["beta2"])
            return made(groups, **shared, betas=betas, eps=settings["epsilon"])
        case kind:
            raise AssertionError(kind)
