"""Schemes by name: a policy, how its jobs live through changes of machines, and whether reliable machines are held.

A user's own policy is named `package.module:Class`, and found from the working folder, as applications are.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from bidbrain.policy.base import Policy
from bidbrain.policy.compiled_proteus import CompiledProteus
from bidbrain.policy.expected_cost import ExpectedCost
from bidbrain.policy.proteus import SLOT_SHARE as PROTEUS_SHARE
from bidbrain.policy.proteus import Proteus
from bidbrain.policy.renewal import REQUESTS, OneHourOracle, Renewal
from bidbrain.policy.renewal import SLOT_SHARE as RENEWAL_SHARE
from bidbrain.policy.standard import OnDemand, Standard, WholeOnDemand
from bidbrain.policy.today import Elastic, Spot2026, StaticCheckpoint
from bidbrain.risk.eviction import mean_time_to_eviction_s
from bidbrain.setting import Engine, Setting


class Training(StrEnum):
    """The way in which a job survives changes of machines."""

    AGILEML = "agileml"
    CHECKPOINTS = "checkpoints"
    YOUNG = "young"  # checkpoints at Young's interval
    STATIC = "static"  # checkpoints every 30 minutes at 3%, on all machines or none
    STEADY = "steady"  # machines that stay


class KernelPolicy(IntEnum):
    """The policies that the compiled simulator (`simulate.kernel`) holds, by their numbers there."""

    STANDARD = 0
    PROTEUS = 1
    RENEWAL = 2
    ORACLE = 3


@dataclass(frozen=True)
class CompiledTwin:
    """The same policy, compiled. slot_share: the cap over the size of a request; requests: per decision."""

    policy: KernelPolicy
    slot_share: int
    requests: int


@dataclass(frozen=True)
class Scheme:
    """A named way to run a job. yardstick: it knows the future, so it cannot be run.

    make_live: makes the policy of a live job where another class decides the same in less time, or knows more of what
    may happen there; None: `make`.
    """

    name: str
    make: Callable[[Setting, int], Policy]
    training: Training
    reliable: bool
    elastic: bool  # may grow beyond the job's own vCPUs
    compiled: CompiledTwin | None = None
    yardstick: bool = False
    make_live: Callable[[Setting, int], Policy] | None = None

    def live(self, setting: Setting, start_s: int) -> Policy:
        """The policy of a live job."""
        return (self.make_live or self.make)(setting, start_s)

    def setting(self, setting: Setting) -> Setting:
        """`setting` with the engine (and cap) of this scheme."""
        job = setting.job
        boot_s = job.engine.boot_s
        match self.training:
            case Training.AGILEML:
                engine = job.engine
            case Training.CHECKPOINTS:
                engine = Engine.checkpointing(boot_s)
            case Training.YOUNG:
                engine = young(setting)
            case Training.STATIC:
                engine = Engine.checkpointing(boot_s, overhead=0.03, checkpoint_s=1800, restart_s=300)
            case Training.STEADY:
                engine = Engine(boot_s)
        return setting.with_job(replace(job, engine=engine, cap=job.cap if self.elastic else 1.0))


def young(setting: Setting) -> Engine:
    """Checkpoints at Young's interval sqrt(2 x seconds per checkpoint x MTTF) (thesis, section 4.5.2).

    A checkpoint takes 17% of 12 minutes, and the interval lies between the end of one and the next. MTTF is that of a
    bid at the on-demand price, over the training window.
    """
    usual = Engine.checkpointing(setting.job.engine.boot_s)
    write_s = usual.overhead * usual.checkpoint_s
    times = [
        mean_time_to_eviction_s(setting.history, each.market, each.on_demand, setting.train)
        for each in setting.listings
    ]
    finite = [time for time in times if math.isfinite(time)]
    if not finite:
        return usual
    interval_s = max(math.ceil(write_s), round(math.sqrt(2 * write_s * sum(finite) / len(finite))))
    every_s = interval_s + round(write_s)
    return replace(usual, overhead=write_s / every_s, checkpoint_s=every_s)


EXPECTED_COST = Scheme("expected_cost", ExpectedCost, Training.AGILEML, reliable=True, elastic=True)
POOLS = {
    scheme.name: scheme
    for scheme in (
        Scheme("static_checkpoint", StaticCheckpoint, Training.STATIC, reliable=False, elastic=False),
        Scheme("elastic", Elastic, Training.AGILEML, reliable=False, elastic=False),
        Scheme("spot_2026", Spot2026, Training.AGILEML, reliable=False, elastic=False),
        EXPECTED_COST,
    )
}
STANDARD = CompiledTwin(KernelPolicy.STANDARD, 1, 1)
SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            *("on_demand", OnDemand, Training.STEADY),
            reliable=False,
            elastic=False,
            make_live=WholeOnDemand,
        ),
        Scheme("standard_checkpoint", Standard, Training.CHECKPOINTS, False, False, STANDARD),
        Scheme("standard_young", Standard, Training.YOUNG, False, False, STANDARD),
        Scheme("standard_agileml", Standard, Training.AGILEML, True, False, STANDARD),
        Scheme(
            *("proteus", Proteus, Training.AGILEML, True, True),
            CompiledTwin(KernelPolicy.PROTEUS, PROTEUS_SHARE, 1),
            make_live=CompiledProteus,
        ),
        Scheme(
            *("renewal", Renewal, Training.AGILEML, True, True),
            CompiledTwin(KernelPolicy.RENEWAL, RENEWAL_SHARE, REQUESTS),
        ),
        Scheme(
            *("one_hour_oracle", OneHourOracle, Training.AGILEML, True, True),
            CompiledTwin(KernelPolicy.ORACLE, RENEWAL_SHARE, REQUESTS),
            yardstick=True,
        ),
        EXPECTED_COST,
    )
}
OTHER_SCHEMES = ("paid_hours_bound",)  # no policy: a linear program (`bounds`)


class UnknownSchemeError(ValueError):
    """A scheme is neither built in nor a class that can be loaded; the message is one sentence."""


def find_scheme(name: str) -> Scheme:
    """A built-in scheme, or a user's policy class `package.module:Class`, run on AgileML with reliable machines."""
    if name in SCHEMES or name in POOLS:
        return SCHEMES.get(name) or POOLS[name]
    module_name, found, class_name = name.partition(":")
    if not found:
        known = ", ".join(dict.fromkeys((*SCHEMES, *OTHER_SCHEMES, *POOLS)))
        raise UnknownSchemeError(
            f"there is no scheme {name!r}; there are {known}, or your own as package.module:Class"
        )
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except SyntaxError as error:
        where = f"{error.filename} line {error.lineno}"
        raise UnknownSchemeError(f"the policy {name!r} cannot be loaded: {where}: {error.msg}") from None
    except Exception as error:  # whatever the user's module does when it is imported
        what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UnknownSchemeError(f"the policy {name!r} cannot be loaded: {what}") from None
    policy = getattr(module, class_name, None)
    if not isinstance(policy, type) or not callable(getattr(policy, "decide", None)):
        raise UnknownSchemeError(
            f"the policy {name!r} does not exist: {module_name} has no class {class_name} with a method decide"
        )
    return Scheme(name, _made_by(name, policy), Training.AGILEML, reliable=True, elastic=True)


def _made_by(name: str, policy: type) -> Callable[[Setting, int], Policy]:
    """The policy's constructor, whose refusal is one sentence."""

    def make(setting: Setting, start_s: int) -> Policy:
        try:
            made: Policy = policy(setting, start_s)
        except Exception as error:
            raise UnknownSchemeError(
                f"the policy {name!r} cannot be made by {policy.__name__}(setting, start_s): "
                f"{type(error).__name__}: {error}"
            ) from error
        return made

    return make
