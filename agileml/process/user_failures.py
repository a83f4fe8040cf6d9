"""Reports a failure of the application or its data on a machine, alike from a thread and from a compute process."""

from __future__ import annotations

from agileml.application import Application, InputError, without_secrets
from agileml.core.compute.traces import user_trace
from agileml.core.compute.unit_error import UnitError
from agileml.core.protocol.commands import Begin, Compute, LoadSlices
from agileml.core.protocol.messages import Failure
from agileml.events.terms import Task
from straggler.coverage import union

MOST_CHARACTERS = 100_000  # of a sentence or a trace: an exception may print the whole batch

ComputeJob = Begin | Compute | LoadSlices


def problem_of(error: BaseException) -> tuple[str, str]:
    """The sentence for an exception of user code, and the traceback where it helps. Both can travel: their length is
    bounded, and bytes that are no text are escaped, as in a file name in another encoding."""
    problem, trace = (text.encode("utf-8", "backslashreplace").decode() for text in _unbounded(error))
    return problem[:MOST_CHARACTERS], trace[-MOST_CHARACTERS:]


def _unbounded(error: BaseException) -> tuple[str, str]:
    if isinstance(error, UnitError):
        return f"{error.place}: {error.problem}", error.trace
    if isinstance(error, InputError | MemoryError):
        return str(error) or "out of memory", ""
    return without_secrets(f"{type(error).__name__}: {error}"), user_trace(error)


def failure_while(doing: ComputeJob | None, problem: str, trace: str) -> Failure:
    """The report of a failure during this job; None: before the machine's first one."""
    match doing:
        case None:
            return Failure(problem, trace, Task.START)
        case LoadSlices(slices):
            return Failure(problem, trace, Task.LOAD, units=slices)
        case Begin(clock=clock, bundles=bundles) | Compute(clock=clock, bundles=bundles):
            return Failure(problem, trace, Task.COMPUTE, clock, union(bundles))


def warm_up(application: Application) -> None:
    """Compile and load what the first unit needs, because later the whole run would wait for it. Raises UnitError."""
    try:
        application.warm_up()
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise UnitError("warm_up()", f"{type(error).__name__}: {error}", user_trace(error)) from error
