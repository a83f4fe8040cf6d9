"""User code that failed, and the unit that it failed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agileml.application import InputError, without_secrets
from agileml.core.compute.contract import ContractError
from agileml.core.compute.traces import user_trace


class UnitError(Exception):
    """User code failed. `place` names the unit, `problem` is one sentence, `trace` the traceback ("" if none).

    What a library says about a file may quote a presigned address, and ends up in logs."""

    def __init__(self, place: str, problem: str, trace: str = "") -> None:
        problem = without_secrets(problem)
        super().__init__(place, problem, trace)
        self.place, self.problem, self.trace = place, problem, trace

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" + (f"\n{self.trace}" if self.trace else "")


@contextmanager
def blamed(place: str) -> Iterator[None]:
    """Turn exceptions of user code into a UnitError of that place; InputError passes as it is."""
    try:
        yield
    except (InputError, UnitError):
        raise
    except ContractError as error:
        raise UnitError(place, str(error)) from None
    except (Exception, SystemExit) as error:  # also sys.exit() in user code
        problem = f"{type(error).__name__}: {error}"
        raise UnitError(place, problem, user_trace(error)) from error
