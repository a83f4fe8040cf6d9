"""The file that `proteus size` reads: up to three questions about one system."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from pipeline.sizing.rules import (
    Algorithm,
    Answer,
    Choice,
    ConvNet,
    FeatureLayer,
    best_minibatch,
    choose_algorithms,
    exact,
    feature_shapes,
    fft_bytes,
    gemm_bytes,
    gpus_for_speedup,
    memory_left_bytes,
    parameter_servers,
)

NonNegative = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GpuQuestion(_Strict):
    """How many GPUs for a speedup (lemma 3.1). Give overhead_ratio, or overhead_s and compute_s."""

    speedup: Annotated[float, Field(ge=1)]
    overhead_ratio: NonNegative | None = None
    overhead_s: NonNegative | None = None
    compute_s: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        measured = (self.overhead_s is not None, self.compute_s is not None)
        if measured != ((True, True) if self.overhead_ratio is None else (False, False)):
            raise ValueError("give either overhead_ratio, or overhead_s and compute_s")
        return self

    def answer(self) -> Answer:
        """By lemma 3.1. Raises SizingError."""
        if self.overhead_ratio is not None:
            return gpus_for_speedup(self.speedup, self.overhead_ratio)
        assert self.overhead_s is not None
        assert self.compute_s is not None
        return gpus_for_speedup(self.speedup, exact(self.overhead_s) / exact(self.compute_s))


class ServerQuestion(_Strict):
    """How many parameter servers hide the communication (lemma 3.2)."""

    parameter_bytes: PositiveFloat
    workers: PositiveInt
    server_bytes_per_s: PositiveFloat
    compute_s: PositiveFloat
    worker_bytes_per_s: PositiveFloat | None = None

    def answer(self) -> Answer:
        """By lemma 3.2. Raises SizingError."""
        return parameter_servers(
            self.parameter_bytes,
            self.workers,
            self.server_bytes_per_s,
            self.compute_s,
            worker_bytes_per_s=self.worker_bytes_per_s,
        )


class AlgorithmTimes(_Strict):
    """One way to compute a convolution: seconds of a minibatch = fixed_s + samples x seconds_per_sample. Its
    memory is by formula for gemm and fft; else memory_bytes_per_sample."""

    name: str
    seconds_per_sample: NonNegative
    fixed_s: NonNegative = 0.0
    memory_bytes_per_sample: NonNegative | None = None


class LayerSpec(_Strict):
    """A convolution (filters, algorithms) or a pooling layer (neither)."""

    filter: PositiveInt
    stride: PositiveInt = 1
    padding: Annotated[int, Field(ge=0)] = 0
    filters: Annotated[int, Field(ge=0)] = 0
    algorithms: tuple[AlgorithmTimes, ...] = ()

    @model_validator(mode="after")
    def _has_algorithms(self) -> Self:
        if bool(self.filters) != bool(self.algorithms):
            raise ValueError("a convolution (filters > 0) needs algorithms, a pooling layer has none")
        return self


class MinibatchQuestion(_Strict):
    """Which minibatch makes an epoch shortest within a GPU's memory (equations 1 to 6)."""

    gpu_memory_bytes: PositiveFloat
    samples: PositiveInt
    candidates: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    input: tuple[PositiveInt, PositiveInt, PositiveInt]
    layers: tuple[LayerSpec, ...]
    dense: tuple[PositiveInt, ...] = ()
    formulas: Literal["corrected", "literal"] = "corrected"

    def network(self) -> ConvNet:
        """The network of the equations."""
        features = tuple(FeatureLayer(s.filter, s.stride, s.padding, s.filters) for s in self.layers)
        return ConvNet(self.input, features, self.dense)

    def choices(self) -> dict[int, Choice | None]:
        """Equation 6 for every candidate."""
        literal = self.formulas == "literal"
        return {
            size: choose_algorithms(
                self._algorithms(size),
                memory_left_bytes(self.gpu_memory_bytes, self.network(), size, literal=literal),
            )
            for size in self.candidates
        }

    def answer(self) -> Answer:
        """The best candidate. Raises SizingError."""
        return best_minibatch(self.samples, self.choices())

    def _algorithms(self, minibatch: int) -> list[list[Algorithm]]:
        shapes = feature_shapes(self.network())
        found = []
        for spec, before, after in zip(self.layers, shapes, shapes[1:], strict=False):
            if not spec.algorithms:
                continue
            known = {
                "gemm": gemm_bytes(before, after, minibatch),
                "fft": fft_bytes(before, after, minibatch),
            }
            options = []
            for a in spec.algorithms:
                if a.memory_bytes_per_sample is None and a.name not in known:
                    raise ValueError(
                        f"algorithm {a.name!r} needs memory_bytes_per_sample (gemm and fft do not)"
                    )
                per_sample = a.memory_bytes_per_sample
                memory = known[a.name] if per_sample is None else per_sample * minibatch
                options.append(Algorithm(a.name, a.fixed_s + minibatch * a.seconds_per_sample, memory))
            found.append(options)
        return found


class SizingConfig(_Strict):
    """The whole file: any of the three questions."""

    name: str = "system"
    gpus: GpuQuestion | None = None
    servers: ServerQuestion | None = None
    minibatch: MinibatchQuestion | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.gpus is None and self.servers is None and self.minibatch is None:
            raise ValueError("ask at least one of gpus, servers, minibatch")
        return self
