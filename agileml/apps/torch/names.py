"""Names in a config: functions of the user's files, and torch's losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

from agileml.application import InputError
from agileml.apps.user_code import imported, split_name
from agileml.config.text import nearest

LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}


def function_named(name: str, key: str) -> Callable[..., Any]:
    """The object that `package.file:function` names, found from the working folder. `key`: its key in the config.

    Raises InputError.
    """
    parts = split_name(name)
    if parts is None:
        raise InputError(f"{key}: found {name!r}, expected package.file:function")
    module_name, attribute = parts
    found = getattr(imported(name, module_name, key), attribute, None)
    if not callable(found):
        what = "has no" if found is None else "has something that is no function as"
        raise InputError(f"{key}: {name}: module {module_name} {what} {attribute!r}")
    return found


def loss_named(name: str) -> Callable[..., Any]:
    """One of LOSSES, or `package.file:function`. Raises InputError."""
    if name in LOSSES:
        return LOSSES[name]
    if ":" in name:
        return function_named(name, "model.loss")
    raise InputError(f"model.loss: found {name!r}, {nearest(name, LOSSES)}, or package.file:function")


def called(function: Callable[..., Any], key: str, *arguments: Any, **named: Any) -> Any:
    """Call the user's function. Raises InputError with the error of the function."""
    try:
        return function(*arguments, **named)
    except InputError:
        raise
    except Exception as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise InputError(f"{key}: {name}() failed: {type(error).__name__}: {error}") from error
