"""The preview of a market before anything is bought: the first decision and its cost."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from itertools import groupby

from agileml.cli.asking import ask, check_terminal
from agileml.config.job import JobConfig
from agileml.config.market import CloudMarketConfig
from agileml.config.text import ConfigError
from agileml.market.log import show_step
from agileml.market.setup import MarketSetup, first_decision, set_up
from agileml.session.clouds import kind_of
from bidbrain.live.cloud import Cloud, CloudError
from bidbrain.live.dry_run import Purchase
from bidbrain.live.journal import Buy
from bidbrain.money import usd


def preview(job: JobConfig, name: str) -> list[str]:
    """The first decision of a job with a market, made without buying. Raises ConfigError, CloudError."""
    if job.market is None:
        raise ConfigError("missing, expected a market to ask for a decision", key=("market",))
    setup = set_up(job, name, secrets.token_hex(6), int(time.time()))
    found = first_decision(setup, _cloud(job, setup))
    reliable = setup.setting.reliable
    count = reliable.vcpus // reliable.vcpus_per_machine
    lines = [f"policy {setup.plan.scheme}: {found.decided.reason}"]
    if setup.plan.with_reliable:
        lines.append(
            f"  buy {count} x {reliable.instance_type} on demand at {usd(reliable.on_demand):.4f} $/h (reliable)"
        )
    shown = [_show(purchase, found.decided.fill is not None) for purchase in found.purchases]
    for line, same in groupby(shown):
        times = len(list(same))
        lines.append(f"  {line}" if times == 1 else f"  {times} times: {line}")
    cost = f"first hour ${usd(found.first_hour):.4f}"
    if found.per_vcpu_hour is not None:
        cost += f" for {found.vcpus} vCPUs: ${usd(found.per_vcpu_hour):.5f} per vCPU hour of work"
    else:
        cost += ", no machine of the market"
    budget = setup.plan.guards.budget
    lines += [cost, "no budget" if budget is None else f"budget ${usd(budget):.2f}"]
    return [*lines, *(f"warning: {warning}" for warning in setup.warnings)]


def _show(purchase: Purchase, fills: bool) -> str:
    """A purchase as it would be made. `fills`: the decision names more than it wants, for markets that refuse."""
    step, vcpus = purchase.step, purchase.vcpus
    if not vcpus:
        why = "only if others refuse" if fills and not purchase.by_guard else purchase.why
        return f"not bought: {_words(purchase, step.vcpus)} ({why})"
    less = f" (of {step.vcpus}; {purchase.why})" if vcpus < step.vcpus else ""
    return f"buy {_words(purchase, vcpus)}{less}"


def _words(purchase: Purchase, vcpus: int) -> str:
    step = replace(purchase.step, vcpus=vcpus)
    return show_step(replace(step, bid=purchase.bid) if isinstance(step, Buy) else step).removeprefix("buy ")


def _cloud(job: JobConfig, setup: MarketSetup) -> Cloud | None:
    """The cloud as it is now; None: the played market."""
    return kind_of(job.market).cloud(setup) if isinstance(job.market, CloudMarketConfig) else None


def may_run(job: JobConfig, name: str, *, dry_run: bool, yes: bool) -> bool:
    """Show the first decision where that is wanted, and ask before money is spent; False: it was only to be shown.

    Raises ConfigError, CloudError; BadParameter where the user cannot be asked, Exit where the user declines.
    """
    question = None if dry_run else _question(job, yes)
    if question is not None:
        check_terminal(question)
    if dry_run or question is not None:
        for line in preview(job, name):
            print(line)
    if question is not None:
        ask(question)
    return not dry_run


def ask_to_submit(job: JobConfig, *, yes: bool) -> None:
    """Ask before a job that buys machines is submitted: later the user cannot be asked any more.

    Raises BadParameter where the user cannot be asked, Exit where the user declines.
    """
    if (question := _question(job, yes)) is not None:
        check_terminal(question)
        ask(question, err=True)  # standard output is the job's id


def _question(job: JobConfig, yes: bool) -> str | None:
    """The question to ask before money is spent; None: nothing is spent, or the user has said yes."""
    return job.market.question if isinstance(job.market, CloudMarketConfig) and not yes else None


__all__ = ["CloudError", "ask_to_submit", "may_run", "preview"]
