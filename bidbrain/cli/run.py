"""Runs `proteus simulate`, on prices or on availability: simulates, prints and writes tables, draws."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from bidbrain.accounts.ledger import Ledger, write_ledgers
from bidbrain.cli.common import make_folder, new_folder, unwritable
from bidbrain.config import ConfigError, SimulateConfig, load_config
from bidbrain.files.whole_file import write_text
from bidbrain.history.archive import repeated_rows_of, write_rows
from bidbrain.history.availability import read_trace
from bidbrain.history.generate import MADE
from bidbrain.money import MICRO_USD
from bidbrain.policy.registry import OTHER_SCHEMES, find_scheme
from bidbrain.report.tables import rich_tables, write_tables
from bidbrain.simulate import kernel
from bidbrain.simulate.experiment import Experiment, Result, Row, compare, summarise
from bidbrain.simulate.experiment import as_json as as_objects
from bidbrain.simulate.made_history import history_of, plan_on_prices
from bidbrain.simulate.plan import Plan
from bidbrain.simulate.pool_plan import make_pool_plan, pool_settings
from bidbrain.simulate.workers import Pool

SWEEPABLE = (
    *("min_delta", "grant_delay_s", "boot_s", "lambda_s", "sigma_s", "phi"),
    *("cap", "job_hours", "reliable", "slot_vcpus", "spot_share", "deadline"),
)


class Output(Console):
    """A console whose reader may go, as with `| head`: the results are in files, and are written all the same."""

    def on_broken_pipe(self) -> None:
        """Go on; rich ends the program."""
        to_nowhere(sys.stderr if self.stderr else sys.stdout)


def to_nowhere(stream: TextIO) -> None:
    """Lead a stream whose reader has gone to nowhere."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


LONG_S = 4.0  # loading what was compiled before takes less


def doing(elapsed_s: float, *, is_compiled: bool) -> str:
    """The text of the bar: the first simulation of an installation compiles for half a minute, at 0 jobs."""
    is_compiling = elapsed_s > LONG_S and not is_compiled
    return "compiling the simulator, once for this installation" if is_compiling else "simulating"


class Doing(ProgressColumn):
    """The present activity. is_here: compiled jobs run in this process, which then knows what is compiled."""

    def __init__(self, *, is_here: bool) -> None:
        super().__init__()
        self._is_here = is_here

    def render(self, task: Task) -> Text:
        """Called by the bar's own thread while the main one compiles."""
        is_compiled = not self._is_here or bool(kernel.simulate_job.signatures)
        return Text(doing(task.elapsed or 0.0, is_compiled=is_compiled))


def progress_bar(*, is_here: bool) -> Progress:
    """Jobs done, on stderr, gone when it is over."""
    return Progress(
        Doing(is_here=is_here),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def parse_sweep(text: str) -> tuple[str, list[float]]:
    """KEY=V,V,V; raises ConfigError."""
    key, equals, values = text.partition("=")
    key = key.strip().removeprefix("--").replace("-", "_")
    if key not in SWEEPABLE:
        raise ConfigError(f"sweep: {key!r} cannot be swept (there are {', '.join(SWEEPABLE)})")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        raise ConfigError(f"sweep: {text!r} (expected KEY=V,V,V with numbers)")
    for value in numbers:
        if numbers.count(value) > 1:
            raise ConfigError(f"sweep: found {key} = {value:g} twice in {text!r}, expected each value once")
    return key, numbers


def with_value(settings: SimulateConfig, key: str, value: float) -> SimulateConfig:
    """The configuration of one point of a sweep; checked like any other."""
    field = SimulateConfig.model_fields[key].annotation
    whole = field in (int, int | None)
    if whole and not value.is_integer():
        raise ConfigError(f"sweep: {key} takes whole numbers, found {value:g}")
    new: Any = [value] if key == "job_hours" else int(value) if whole else value
    return load_config(None, settings.model_dump() | {key: new})


def processes_of(settings: SimulateConfig) -> int:
    """One for each core that this process may use: a batch system, a container or taskset may leave it a few."""
    return settings.processes or len(os.sched_getaffinity(0))


def run_prices(settings: SimulateConfig, sweep: str | None, *, as_json: bool = False) -> None:
    """Run `proteus simulate` on prices; raises the user errors of its parts."""
    history = history_of(settings)
    run_plans(settings, sweep, lambda each: plan_on_prices(each, history), _title, as_json=as_json)


def run_pools(settings: SimulateConfig, sweep: str | None, *, as_json: bool = False) -> None:
    """Run `proteus simulate` on availability traces; raises the user errors of its parts."""
    settings = pool_settings(settings)
    traces = [read_trace(path) for path in settings.availability]

    def title(experiment: Experiment) -> str:
        names = ", ".join(trace.market.zone for trace in traces)
        rules = experiment.setting.rules
        shares = sorted({pool.price / MICRO_USD for pool in experiment.setting.pools})
        spot = "-".join(f"{share:g}" for share in dict.fromkeys((shares[0], shares[-1])))
        return f"{settings.nodes} nodes, pools {names}, {rules}, spot at {spot} of on-demand"

    run_plans(settings, sweep, lambda each: make_pool_plan(each, traces), title, as_json=as_json)


def run_plans(
    settings: SimulateConfig,
    sweep: str | None,
    planned: Callable[[SimulateConfig], Plan],
    title: Callable[[Experiment], str],
    *,
    as_json: bool,
) -> None:
    """Run the plan of a configuration, or those of a sweep: tables on screen and in files, ledgers, plots.

    as_json: the rows of the tables go to stdout as objects, everything else to stderr.
    """
    console = Output(stderr=True) if as_json else Output() if sys.stdout.isatty() else Output(width=110)
    if sweep is not None:
        key, values = parse_sweep(sweep)
        plans = [planned(with_value(settings, key, value)) for value in values]
        say_notes(tuple(dict.fromkeys(note for each in plans for note in each.notes)), console)
        with results_folder(settings) as folder:
            run_sweep(
                settings, key, values, [each.experiment for each in plans], folder, console, as_json=as_json
            )
        return
    plan = planned(settings)
    say_notes(plan.notes, console)
    with results_folder(settings) as folder:
        run_plan(settings, plan, folder, title, console, as_json=as_json)


def run_plan(
    settings: SimulateConfig,
    plan: Plan,
    folder: Path,
    title: Callable[[Experiment], str],
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Simulate one plan."""
    results = simulate_all(plan.experiment, settings)
    rows = [summarise(result, settings.seed) for result in results]
    write_tables(folder, rows, compare(results, settings.seed))
    console.print(title(plan.experiment), soft_wrap=True, highlight=False, markup=False)
    show_rows(rows, "all on-demand = 1", console, {} if as_json else None)
    say_unfinished(rows, console)
    write_books(plan.experiment, results, settings.ledger, folder, "", console)
    from bidbrain.cli.draw import draw  # loads matplotlib

    console.print(f"{draw(plan, results, rows, settings, folder)}", markup=False)


@contextmanager
def results_folder(settings: SimulateConfig) -> Iterator[Path]:
    """Where the results go, made before any work is done for them. If that leaves none, a new folder goes again."""
    is_new = settings.out is None or not settings.out.exists()
    if settings.out is not None:
        folder = make_folder(settings.out)
    else:
        folder = new_folder(Path("runs") / time.strftime("simulate-%Y%m%d-%H%M%S"))
    try:
        yield folder
    except OSError as error:
        raise unwritable(folder, error) from None
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def show_rows(rows: Sequence[Row], title: str, console: Console, more: dict[str, float] | None) -> None:
    """Print the tables; or, with `more`, an object for each row, which has these keys too."""
    if more is None:
        for table in rich_tables(rows, title):
            console.print(table)
        return
    try:
        for row in as_objects(rows):
            print(json.dumps(more | row))
        sys.stdout.flush()
    except BrokenPipeError:
        to_nowhere(sys.stdout)


def simulate_all(experiment: Experiment, settings: SimulateConfig) -> list[Result]:
    tasks = experiment.tasks()
    total = sum(len(task.starts) for task in tasks)
    # Compiled jobs take 0.1 ms: processes pay only for the others.
    slow = any(_is_slow(name) for name in experiment.schemes)
    is_here = not slow and any(name != "on_demand" for name in experiment.schemes)
    with Pool(processes_of(settings) if slow else 1) as pool, progress_bar(is_here=is_here) as bar:
        job = bar.add_task("", total=total)
        return experiment.run(pool, lambda count: bar.advance(job, count))


def _is_slow(scheme: str) -> bool:
    return scheme in OTHER_SCHEMES or (scheme != "on_demand" and find_scheme(scheme).compiled is None)


def _title(experiment: Experiment) -> str:
    setting = experiment.setting
    types = ", ".join(sorted({listing.market.instance_type for listing in setting.listings}))
    markets = len(setting.listings)
    return f"{types} in {markets} market{'s' * (markets > 1)}, {setting.rules}, {setting.job.vcpus} vCPUs"


def say_unfinished(rows: Sequence[Row], console: Console) -> None:
    for row in rows:
        if row.unfinished:
            when = "before the history does"
            if row.is_bound:
                when = "within the time of the on-demand job: this cap leaves it no time for boots"
            console.print(
                f"note: {row.scheme}, {row.job_hours:g} h: {row.unfinished} of {row.jobs} jobs could not end {when};"
                " means are over the others",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )


def say_notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)


def write_books(
    experiment: Experiment,
    results: Sequence[Result],
    jobs: int | None,
    folder: Path,
    which: str,
    console: Console,
) -> None:
    """Write the first `jobs` jobs of each scheme, and prices that no file of the user's has: of pools, and made ones.

    Without `jobs` it writes nothing, and says of a ledger that lies there whose it is. `which` ends the names of the
    files.
    """
    ledger = folder / f"ledger{which}.jsonl"
    if not jobs:
        if ledger.exists():
            note = f"{ledger} is that of an earlier simulation: --ledger JOBS writes one of this"
            say_notes((note,), console)
        return
    count = write_ledgers(ledger, ledgers_of(experiment, results, jobs))
    prices = ""
    if experiment.setting.pools or MADE in experiment.setting.history.sources:
        priced = folder / f"prices{which}.csv"
        write_rows(priced, repeated_rows_of(experiment.setting.history))
        prices = f" (their prices: {priced})"
    console.print(f"{ledger}: {count} jobs{prices}", soft_wrap=True, highlight=False, markup=False)


def ledgers_of(experiment: Experiment, results: Sequence[Result], count: int) -> Iterator[Ledger]:
    """The first `count` jobs of every scheme that holds machines."""
    for result in results:
        if result.is_bound:
            continue
        for number, outcome in enumerate(result.outcomes[:count]):
            name = f"{result.scheme}-{result.job_hours:g}h-{number:04d}"
            yield experiment.ledger(result.scheme, result.job_hours, outcome.start_s, name)[1]


def run_sweep(
    settings: SimulateConfig,
    key: str,
    values: Sequence[float],
    experiments: Sequence[Experiment],
    folder: Path,
    console: Console,
    *,
    as_json: bool = False,
) -> None:
    """Simulate one value after the other. The file has those that are done, should the next be interrupted."""
    from bidbrain.report.plots import plot_sweep

    tables: list[list[Row]] = []
    for value, experiment in zip(values, experiments, strict=True):
        results = simulate_all(experiment, settings)
        rows = [summarise(result, settings.seed) for result in results]
        tables.append(rows)
        write_sweep(folder, key, values, tables)
        write_books(experiment, results, settings.ledger, folder, f"-{key}-{value:g}", console)
        show_rows(rows, f"{key} = {value:g}", console, {key: value} if as_json else None)
    console.print(f"{plot_sweep(key, values, tables, folder / f'sweep_{key}.png')}", markup=False)


def write_sweep(folder: Path, key: str, values: Sequence[float], tables: Sequence[Sequence[Row]]) -> None:
    """sweep_KEY.json: the rows of every value that is done."""
    grid = [{key: value, "table": as_objects(rows)} for value, rows in zip(values, tables, strict=False)]
    write_text(folder / f"sweep_{key}.json", json.dumps(grid, indent=1) + "\n")
