"""`proteus profile`: seconds and bytes of a torch model, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.common import check_out, progress


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

    from pipeline.profile.layers import ProfileError, write
    from pipeline.profile.profiler import profile_module, sum_of_outputs
    from pipeline.profile.user_model import LoadError, load_function, to_device

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
        made = load_function(model)()
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise LoadError(
                f"{model} must return (model, inputs) or (model, inputs, loss), found {type(made).__name__}"
            )
        module, inputs = to_device(made[0], device), to_device(tuple(made[1]), device)
        loss = made[2] if len(made) == 3 else sum_of_outputs
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
        write(measured.profile, out)
        print(f"Wrote {out}")
