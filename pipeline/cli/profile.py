"""`proteus profile`: seconds and bytes of a torch model, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.common import check_out, progress, write_profile

if TYPE_CHECKING:
    import torch
    from torch import nn


def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            help="package.file:function or path/file.py:function; it returns (model, inputs) or (model, inputs, loss)."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the profile as JSON here.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples in the minibatch, noted in the profile.")] = None,
    repeats: Annotated[int, typer.Option(help="Steps to measure.")] = 20,
    warm_up: Annotated[int, typer.Option(help="Steps before.")] = 3,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads for torch.")] = None,
) -> None:
    """Measure a torch model layer by layer: seconds forward and backward, bytes, graph."""
    import torch

    from pipeline.profile.layers import ProfileError
    from pipeline.profile.profiler import profile_module
    from pipeline.profile.user_model import LoadError

    check_out(out)
    if batch is not None and batch < 1:
        raise typer.BadParameter(f"--batch must be 1 or more, found {batch}")
    if warm_up < 0:
        raise typer.BadParameter(f"--warm-up must be 0 or more, found {warm_up}")
    if threads is not None:
        if threads < 1:
            raise typer.BadParameter(f"--threads must be 1 or more, found {threads}")
        torch.set_num_threads(threads)
    try:
        module, inputs, loss = _made(model, device)
        with progress("profiling") as on_progress:
            measured = profile_module(
                module,
                inputs,
                loss=loss,
                batch=batch,
                warm_up=warm_up,
                repeats=repeats,
                on_progress=on_progress,
            )
    except (ProfileError, LoadError) as error:
        raise typer.BadParameter(str(error)) from None
    print(measured.profile.table())
    print(
        f"The layers add up to {measured.layers_over_step:.1%} of the whole step of {measured.step_s * 1e3:.3f} ms "
        f"(steps vary by {measured.spread:.1%})."
    )
    if measured.unattributed_bytes:
        print(f"{measured.unattributed_bytes / 1e6:.3f} MB of weights were not used by any layer.")
    if out is not None:
        write_profile(measured.profile, out)
        print(f"Wrote {out}")


def _made(model: str, device: str) -> tuple[nn.Module, tuple[Any, ...], Callable[[Any], torch.Tensor]]:
    """The module, its inputs and the loss that the user's function returns. Raises LoadError."""
    from torch import nn

    from pipeline.profile.profiler import sum_of_outputs
    from pipeline.profile.user_model import LoadError, load_function, to_device

    made = load_function(model)()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise LoadError(
            f"{model} must return (model, inputs) or (model, inputs, loss), found {type(made).__name__}"
        )
    if not isinstance(made[0], nn.Module) or not isinstance(made[1], tuple | list):
        raise LoadError(
            f"{model} must return a module and its inputs in a tuple, "
            f"found {type(made[0]).__name__} and {type(made[1]).__name__}"
        )
    loss = made[2] if len(made) == 3 else sum_of_outputs
    return to_device(made[0], device), to_device(tuple(made[1]), device), loss
