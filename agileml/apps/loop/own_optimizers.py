"""Optimizers of the user's own classes: the arguments by which a machine makes one like them again."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from agileml.application import InputError
from agileml.apps.torch.resident.state import FORMS

# Of a group, what a section has elsewhere or a step does not depend on.
BESIDE = {"params", "param_names", "lr", "initial_lr", *FORMS}


def arguments_of(optimizer: torch.optim.Optimizer, found: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of its class beside `params` and `lr`. found: those that are in its groups under their names.

    A class may take others, in **kwargs or as attributes. Raises InputError where one that is made again has other
    settings, and would take other steps.
    """
    arguments = dict(found)
    lacking = _lacking(optimizer, arguments)
    if lacking:
        known = signature(type(optimizer)).parameters
        takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in known.values())
        more = known.keys() | (optimizer.defaults.keys() if takes_any else set())
        arguments |= {key: plain(key, value) for key, value in lacking.items() if key in more}
        lacking = _lacking(optimizer, arguments)
    for key, value in lacking.items():
        raise InputError(
            f"prepare(): found an optimizer with {key}={value!r}, which {type(optimizer).__name__}(...) does not make "
            "again, expected settings that its class takes as arguments and shows under their names"
        )
    return arguments


def _lacking(optimizer: torch.optim.Optimizer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of groups, and attributes, that one made by these arguments does not have alike.

    None where the class refuses them: a sentence says so when the job's optimizer is made.
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        own = {key: float(group[key]) for key in ("lr", "weight_decay") if groups and key in group}
        stand_ins = [
            nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in group["params"]
        ]
        groups.append({"params": stand_ins, **own})
    named = {key: value for key, value in arguments.items() if key not in FORMS}
    try:
        again = type(optimizer)(groups, lr=float(optimizer.param_groups[0]["lr"]), **named)
    except Exception:  # whatever a class of the user's raises
        return {}
    lacking = {}
    for group, new in zip(optimizer.param_groups, again.param_groups, strict=True):
        for key, value in group.items():
            if key not in BESIDE and not (key in new and _is_same(value, new[key])):
                lacking[key] = value
    present = vars(optimizer)
    for key, value in vars(again).items():
        if _is_plain(value) and key in present and not _is_same(present[key], value):
            lacking.setdefault(key, present[key])
    return lacking


def plain(key: str, value: Any) -> Any:
    """An argument as a config has it. Raises InputError."""
    if isinstance(value, tuple | list):
        return [plain(key, each) for each in value]
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, float):
        return float(value)  # NumPy's float64 is one too
    if value is None or isinstance(value, bool | int | str):
        return value
    raise InputError(
        f"prepare(): found an optimizer with {key} of type {type(value).__name__}, expected a number or a text"
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    one, other = (each.tolist() if isinstance(each, Tensor) else each for each in (one, other))
    return one is other or bool(one == other)
