"""The section `pipeline`: training in stages, each machine with some layers, and what it demands of other keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from agileml.config.optimizer import OPTIMIZERS
from agileml.config.section import CountOrAuto, PositiveInt, Section
from agileml.config.text import ConfigError, Key, show


def _replicas(value: Any) -> Any:
    if value == "auto":
        return value
    each = value if isinstance(value, list | tuple) else [value]
    if each and all(isinstance(one, int) and not isinstance(one, bool) and one >= 1 for one in each):
        return tuple(each) if isinstance(value, list | tuple) else value
    raise ConfigError(
        f"found {show(value)}, expected a whole number of at least 1, one for each stage as in [2, 1], or auto"
    )


class PipelineConfig(Section):
    """How a model is trained in stages.

    mode: flush is synchronous, with the bits of data parallelism; stash has no flush, and each backward the weights of
    its forward (PipeDream); none has no flush, and each action a stage's newest weights. With stash, vertical_sync
    gives a clock weights of one age at all stages, and double_buffered weights one clock old. stages: the most there
    may be (auto: as many as machines compute). replicas: the most machines of each stage, or of one after the other;
    machines beyond the stages become replicas; auto: the planner says how many stages and replicas there are. order: of
    a stage's actions; zero-bubble puts gradients of linear layers' weights off into the bubble.
    """

    mode: Literal["flush", "stash", "none"] = "flush"
    vertical_sync: bool = False
    double_buffered: bool = False
    stages: CountOrAuto = "auto"
    replicas: Annotated[
        PositiveInt | tuple[PositiveInt, ...] | Literal["auto"], BeforeValidator(_replicas)
    ] = 1
    order: Literal["1f1b", "zero-bubble"] = "1f1b"

    @property
    def most_replicas(self) -> int:
        """The most machines that a stage may have; with auto any number that has units."""
        if self.replicas == "auto":
            return 1
        return max(self.replicas) if isinstance(self.replicas, tuple) else self.replicas

    @property
    def weights(self) -> str:
        """The rule by which a stage picks the weights of a clock: the mode, or the option that refines stash."""
        if self.vertical_sync:
            return "vertical_sync"
        return "double_buffered" if self.double_buffered else self.mode


# (key, whether its value goes with a pipeline, what is expected and why)
_DEMANDS: tuple[tuple[Key, Callable[[Any], bool], str], ...] = (
    (
        ("application",),
        lambda name: name not in ("kmeans", "lda", "mf", "mlr"),
        "torch: only a torch module has layers to cut between",
    ),
    (("consistency", "kind"), lambda value: value == "bsp", "bsp: a clock goes through all stages"),
    (("exchange",), lambda value: value == "servers", "servers: a stage serves its own layers"),
    # After the two above, which its default follows: nobody can mend what he did not write.
    (("deterministic",), lambda value: value, "true: its units are added along the fixed tree"),
    (("balance", "kind"), lambda value: value != "lbbsp", "static: every stage computes all units"),
    (("helping",), lambda value: value in (False, "auto"), "false: no machine has another one's layers"),
    (("overlap",), lambda value: not value, "false: a stage has its own layers already"),
    (
        ("stage",),
        lambda value: value in ("auto", "thresholds"),
        "auto: transient machines are its stages where there are some, else reliable ones",
    ),
    (("active_fraction",), lambda value: value == 1.0, "1: every stage serves its layers"),
    (("machines", "workers"), lambda value: value in ("auto", 1), "1: a machine is one stage"),
    (("machines", "gpus"), lambda value: value == 0, "0: stages compute on the CPU"),
    (("pace", "unit_s"), lambda value: value == 0, "0: stages compute as fast as they can"),
)

# The same of an option of stash.
_OF_STASH: tuple[tuple[Key, Callable[[Any], bool], str], ...] = (
    (("pipeline", "mode"), lambda value: value == "stash", "stash: it is an option of that mode"),
)

# The same of a pipeline without a flush.
_WITHOUT_FLUSH: tuple[tuple[Key, Callable[[Any], bool], str], ...] = (
    (("pipeline", "order"), lambda value: value == "1f1b", "1f1b: there is no bubble to fill"),
    (
        ("optimizer", "clip_norm"),
        lambda value: value is None,
        "none: a stage updates its layers before the others' gradients of the clock are there",
    ),
    (
        ("optimizer", "kind"),
        lambda value: not OPTIMIZERS[value].is_layerwise,
        "another kind: its norms need all partitions at the same clock",
    ),
)


def check_pipeline(config: Any) -> None:
    """Raises ConfigError where another key of a job with a pipeline does not go with it."""
    if config.pipeline is None:
        return
    mode, options = config.pipeline.mode, ("vertical_sync", "double_buffered")
    wanted = [name for name in options if getattr(config.pipeline, name)]
    if len(wanted) > 1:
        raise ConfigError(
            "found true with pipeline.vertical_sync, expected false: a clock has weights of one age or the other",
            key=("pipeline", "double_buffered"),
        )
    _check_replicas(config)
    checked = [("a pipeline", each) for each in _DEMANDS]
    checked += [(f"pipeline.{name}", each) for name in wanted for each in _OF_STASH]
    if mode != "flush":
        checked += [(f"pipeline.mode {mode}", each) for each in _WITHOUT_FLUSH]
    for what, (key, is_right, expected) in checked:
        value = config
        for name in key:
            value = getattr(value, str(name))
        if not is_right(value):
            # A section may have been written as one word.
            shown = key[-1] if isinstance(value, Section) else show(value)
            found = f"{value:g}" if isinstance(value, float) else shown
            raise ConfigError(f"found {found} with {what}, expected {expected}", key=key)
    if getattr(config.market, "paced", False):
        raise ConfigError(
            "found true with a pipeline, expected false: stages compute as fast as they can",
            key=("market", "paced"),
        )


def _check_replicas(config: Any) -> None:
    """Raises ConfigError where the machines of a stage could not have units of a clock each, or say other stages."""
    wanted, units = config.pipeline, config.slices * config.units_per_slice
    if isinstance(wanted.replicas, tuple) and wanted.stages not in ("auto", len(wanted.replicas)):
        raise ConfigError(
            f"found {wanted.stages} with pipeline.replicas {list(wanted.replicas)}, expected auto or "
            f"{len(wanted.replicas)}: there is one number for each stage",
            key=("pipeline", "stages"),
        )
    if wanted.most_replicas > units:
        raise ConfigError(
            f"found {wanted.most_replicas}, expected at most {units}: a clock has so many units "
            "(slices x units_per_slice), and each machine of a stage needs one",
            key=("pipeline", "replicas"),
        )
    if (
        wanted.replicas != 1
        and wanted.double_buffered
        and (wanted.replicas == "auto" or wanted.most_replicas > 1)
    ):
        raise ConfigError(
            f"found {show(wanted.replicas)} with pipeline.double_buffered, expected 1: its stages take units of two "
            "clocks in turn, in an order that replicas would break",
            key=("pipeline", "replicas"),
        )
