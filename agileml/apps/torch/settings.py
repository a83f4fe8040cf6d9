"""The section `model` of a torch job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from agileml.config.section import Section


class ModuleConfig(Section):
    """The section `model`. `batch_size`: items of a clock over all workers; None: `clocks_per_pass` clocks a pass."""

    module: str | None = None
    script: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    loss: str = "cross_entropy"
    step: str | None = None
    metrics: dict[str, str] = Field(default_factory=dict)
    evaluate_every: Literal["pass"] | Annotated[int, Field(ge=1)] | None = None
    augment: str | None = None
    collate: str | None = None
    loader_processes: Annotated[int, Field(ge=0)] = 0
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    autocast: Literal["bfloat16"] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1)] = 1
