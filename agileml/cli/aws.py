"""`proteus aws template | plan | up | status | down`: the AWS resources of a job on EC2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agileml.cli.asking import ask, check_terminal
from agileml.cli.run import Settings

if TYPE_CHECKING:
    from agileml.aws.commands import Stack, StackPlan
    from agileml.aws.estimate import OfflinePlan
    from agileml.config.job import JobConfig
    from bidbrain.aws.stack.checks import Cost
    from bidbrain.aws.stack.parts import Step

Config = Annotated[
    Path, typer.Argument(help="YAML file of a job whose market is ec2, such as configs/aws.yaml.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

aws = typer.Typer(
    name="aws", no_args_is_help=True, help="Make, inspect and remove the AWS resources of a job on EC2."
)


def mount(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(aws)


@aws.command()
def template(
    operator: Annotated[
        bool, typer.Option("--operator", help="The policy for the person who runs `proteus aws`.")
    ] = False,
    region: Annotated[bool, typer.Option("--region", help="The template of each of market.regions.")] = False,
) -> None:
    """Print the CloudFormation template of a stack."""
    from bidbrain.aws.stack.template import OPERATOR, REGION, STACK, text

    if operator and region:
        raise typer.BadParameter("found --operator and --region, expected one of them")
    print(text(OPERATOR if operator else REGION if region else STACK), end="")


@aws.command()
def plan(
    config: Config,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    history: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded prices (`proteus prices fetch`): the job's cost and its spread on them."),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Do not ask AWS: template, rights, costs by the package's tables."),
    ] = False,
) -> None:
    """Show the resources that `up` would make, their cost, and whether it can work; makes nothing."""
    from agileml.aws.estimate import forecast_json, job_forecast, offline_plan, show_forecast

    with _sentences():
        job = _job(config, settings)
        with _located(config, settings):
            found = job_forecast(job, history) if history else None
            alone = offline_plan(job) if offline else None
        if alone is not None:
            print(alone.as_json(found) if as_json else _offline_text(alone))
        else:
            report = _look(job)
            if as_json:
                forecast = {"forecast": forecast_json(found)} if found else {}
                print(json.dumps(json.loads(report.as_json()) | forecast, indent=2))
            else:
                _show(report)
        if found is not None and not as_json:
            print(f"\n{show_forecast(found)}")
        if alone is None:
            _stop_if_wrong(report)


@aws.command()
def up(config: Config, settings: Settings = None, yes: Yes = False) -> None:
    """Make the missing resources and start the head. After an interruption, run it again: it goes on."""
    from agileml.aws.commands import build_wheel

    with _sentences():
        stack, wheel = _stack(config, settings), build_wheel()
        report = stack.look(wheel)
        _stop_if_wrong(report)
        _show_costs(report)
        hour = report.costs[0].per_h or 0
        where = f"{stack.site.name} in account {report.facts.account}"
        _ask(f"Make the stack {where}? Its head costs {hour / 1e6:.3f} $/h until `down`.", yes)
        head = stack.up(report, wheel, _tell)
        print(f"\nThe head {head.instance_id} is starting; it is ready in about five minutes. To reach it:\n")
        print(stack.how_to_reach(head.instance_id))
        print(f"\nRemove everything with: proteus aws down {config}")


@aws.command()
def status(
    config: Config,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Show the resources of the stack and its running machines."""
    from bidbrain.aws.stack.parts import PartKind
    from bidbrain.aws.stack.status import hours

    with _sentences():
        stack = _stack(config, settings)
        parts, machines = stack.status()
        if as_json:
            rows = [vars(each) | {"hours": round(hours(each), 3)} for each in machines]
            print(json.dumps({"parts": [f"{p.kind} {p.name}" for p in parts], "machines": rows}, indent=2))
            return
        if not parts and not machines:
            where = f"{stack.site.region} of account {stack.account()}"
            print(f"There is nothing of the stack {stack.site.name} in {where}.")
            return
        for part in parts:
            print(f"{part.kind:<20} {part.name}{'' if part.is_whole else '  (interrupted: say `up` again)'}")
        _show_machines(machines)
        if heads := [each for each in machines if each.is_head and each.state in ("pending", "running")]:
            if any(part.kind == PartKind.TOKEN for part in parts):
                stack.keep_token(stack.account())
            print(f"\n{stack.how_to_reach(heads[0].instance_id)}")


@aws.command()
def down(
    config: Config,
    settings: Settings = None,
    yes: Yes = False,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Leave the bucket with checkpoints and results.")
    ] = False,
) -> None:
    """End every machine and remove everything; prove it by looking again."""
    from bidbrain.aws.stack.parts import PartKind

    with _sentences():
        stack = _stack(config, settings)
        remover = stack.down(account := stack.account(), keep_data)
        found = remover.found()
        if found:
            objects = [each for each in found if each.kind is PartKind.OBJECTS]
            lost = f", with {objects[0].value} objects in {objects[0].name}" if objects else ""
            parts = f"{len(found)} parts of the stack {stack.site.name} in account {account}"
            _ask(f"Remove the {parts}{lost}?", yes)
            remover.down(_tell)
            stack.forget_token()
        else:  # a head in an account that was not looked at costs money until somebody removes it
            print(
                f"Account {account} has nothing to remove; a stack of another one is seen with its credentials."
            )
        _prove(stack, keep_data)


def _prove(stack: Stack, keep_data: bool) -> None:
    from bidbrain.aws.stack.status import still_tagged, terminated

    listed = still_tagged(stack.aws, stack.site)
    gone = terminated(stack.aws, stack.site)
    but = " but the bucket" if keep_data else ""
    print(
        f"Nothing of the stack {stack.site.name} is left{but}; {gone} terminated machines keep their tags a while."
    )
    if listed is None:
        print("AWS' tagging service was not checked: these credentials may not ask it.")
    elif listed and not keep_data:
        print(f"AWS' tagging service, which lags behind, still lists {', '.join(listed)}.")


def _stack(config: Path, settings: list[str] | None) -> Stack:
    return _connected(_job(config, settings))


def _job(config: Path, settings: list[str] | None) -> JobConfig:
    """The job of a config whose market is EC2. Raises ConfigError."""
    from agileml.aws.commands import site_of
    from agileml.config.job import load

    job = load(config, tuple(settings or ()))
    with _located(config, settings):
        site_of(job)
    return job


def _look(job: JobConfig) -> StackPlan:
    """The report of `plan`. Raises CloudError, ForeignError."""
    from agileml.aws.commands import build_wheel
    from bidbrain.live.cloud import CredentialsError

    try:
        return _connected(job).look(build_wheel())
    except CredentialsError as error:
        more = "--offline prints the template, the rights and a cost estimate without AWS"
        raise CredentialsError(f"{error}; {more}") from None


def _connected(job: JobConfig) -> Stack:
    from agileml.aws.commands import Stack, connect, site_of

    return Stack(job, connect(site_of(job)[0]))


@contextmanager
def _located(config: Path, settings: list[str] | None) -> Iterator[None]:
    """A ConfigError about a key says where in the file or the flags it stands."""
    from agileml.config.job import locate
    from agileml.config.text import ConfigError

    try:
        yield
    except ConfigError as error:
        raise (locate(error, config, tuple(settings or ())) if error.key else error) from None


@contextmanager
def _sentences() -> Iterator[None]:
    """An error as one sentence, exit code 2."""
    from agileml.config.text import ConfigError
    from bidbrain.aws.stack.parts import ForeignError
    from bidbrain.live.cloud import CloudError

    try:
        yield
    except (ConfigError, CloudError, ForeignError) as error:
        raise typer.BadParameter(str(error)) from None


def _stop_if_wrong(report: StackPlan) -> None:
    if report.wrong is not None:
        raise typer.BadParameter(report.wrong.text)


def _ask(question: str, yes: bool) -> None:
    """Before money is spent or data is lost."""
    if not yes:
        check_terminal(question)
        ask(question)


def _tell(step: Step) -> None:
    print(f"{step.action:<7}{step.kind:<20} {step.name}", flush=True)


def _show(report: StackPlan) -> None:
    width = max(len(check.what) for check in report.checks)
    for check in report.checks:
        print(f"{check.verdict:<12}{check.what:<{width}}  {check.text}")
    if report.steps:
        print()
        for step in report.steps:
            print(f"{step.action:<7}{step.kind:<20} {step.name}  ({step.reason})")
    _show_costs(report)
    for who, policy in report.policies.items():
        print(f"\nIAM policy of {who}:\n{json.dumps(policy, indent=2)}")


def _offline_text(plan: OfflinePlan) -> str:
    """The report without AWS; ACCOUNT and IMAGE stand for what only the account knows."""
    rights = [
        f"IAM policy of {who}:\n{json.dumps(policy, indent=2)}" for who, policy in plan.policies.items()
    ]
    return "\n\n".join([f"CloudFormation template:\n{plan.template}", *rights, _cost_table(plan.costs)])


def _show_costs(report: StackPlan) -> None:
    print(f"\n{_cost_table(report.costs)}")


def _cost_table(costs: tuple[Cost, ...]) -> str:
    lines = ["$ per hour"]
    for cost in costs:
        figure = "?" if cost.per_h is None else f"{cost.per_h / 1e6:.4f}"
        lines.append(f"{figure:>10}  {cost.what} ({cost.basis})")
    sure = sum(cost.per_h or 0 for cost in costs if cost.is_sure) / 1e6
    most = sum(cost.per_h or 0 for cost in costs) / 1e6
    rest = f"while a job runs, before BidBrain buys anything; {most:.4f} with all of these"
    return "\n".join([*lines, f"{sure:>10.4f}  {rest}"])


def _show_machines(machines: tuple[object, ...]) -> None:
    from bidbrain.aws.stack.status import Running, hours

    print()
    for each in machines:
        assert isinstance(each, Running)
        what = "head" if each.is_head else f"job {each.job}, {'spot' if each.is_spot else 'on-demand'}"
        where = f"{each.instance_type} in {each.zone}"
        print(f"{each.instance_id:<20} {each.state:<8} {where:<26} {hours(each):7.2f} h  {what}")
