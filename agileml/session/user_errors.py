"""Exceptions of user code, as errors of the run with their tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agileml.application import InputError, without_secrets
from agileml.config.text import ConfigError
from agileml.core.compute.contract import ContractError
from agileml.core.compute.traces import is_in_user_code, user_trace
from agileml.core.compute.unit_error import UnitError
from agileml.errors import RunError
from agileml.runs.folder import StorageError


@contextmanager
def blame_user(what: str) -> Iterator[None]:
    """Turn the user's exceptions into errors with their tracebacks; bad input passes unchanged."""
    try:
        yield
    except (ConfigError, InputError, StorageError):
        raise
    except UnitError as error:
        raise RunError(f"{error.place}: {error.problem}", error.trace) from error
    except ContractError as error:
        raise RunError(f"application: {error}") from error
    except Exception as error:
        what = next(iter(getattr(error, "__notes__", ())), what)
        # Where no line of the user's asked for the memory, a number in the config did: a traceback tells nothing.
        if isinstance(error, MemoryError) and not is_in_user_code(error):
            raise RunError(f"{what}: {str(error) or 'out of memory'}") from error
        said = without_secrets(f"{what}: {type(error).__name__}: {error}")
        raise RunError(said, user_trace(error)) from error
