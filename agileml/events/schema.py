"""`events.jsonl`: a line that names the version, then one line of JSON for each event, made from and into its class.

    {"log": "proteus run", "version": 1}
    {"t_s": 0.8125, "kind": "cut", "clock": 40, "travel_s": 0.0123}

`t_s`: seconds since the log was opened. A number that is not finite is written as null and read as not a number.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from agileml.events.market import MarketEvent
from agileml.events.run import ControllerEvent, DriverEvent

VERSION = 1
RunEvent = ControllerEvent | DriverEvent | MarketEvent
KINDS: Mapping[str, type[RunEvent]] = {each.kind: each for each in get_args(RunEvent)}

E = TypeVar("E", bound=RunEvent, covariant=True)


@dataclass(frozen=True)
class Logged(Generic[E]):
    """An event, `t_s` seconds after the log was opened."""

    t_s: float
    event: E


Log = Sequence[Logged[RunEvent]]


def of_type(log: Iterable[Logged[RunEvent]], kind: type[E]) -> list[Logged[E]]:
    """The events of one class with their times, in their order."""
    return cast("list[Logged[E]]", [each for each in log if isinstance(each.event, kind)])


def events_of(log: Iterable[Logged[RunEvent]], kind: type[E]) -> list[E]:
    """The events of one class, in their order."""
    return [each.event for each in log if isinstance(each.event, kind)]


class SchemaError(ValueError):
    """A line that is no event of this version: one sentence, without the file's name."""


# -- writing ------------------------------------------------------------------------------------------------


def header() -> str:
    """The first line, without its end."""
    return json.dumps({"log": "proteus run", "version": VERSION})


def to_line(logged: Logged[RunEvent]) -> str:
    """The line of an event, without its end."""
    event = {"t_s": round(logged.t_s, 6), "kind": logged.event.kind, **_plain(logged.event)}
    return json.dumps(event, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # numpy's too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(item) for item in value]


# -- reading ------------------------------------------------------------------------------------------------


def check_header(line: str) -> None:
    """Raise SchemaError unless a log of this version begins with this line."""
    found = _object(line)
    version = found.get("version", "no version")
    if found.get("log") != "proteus run" or version != VERSION:
        raise SchemaError(f"found {version}, expected a log of version {VERSION}")


def from_line(line: str) -> Logged[RunEvent]:
    """The event of a line. Raises SchemaError."""
    values = _object(line)
    name = values.pop("kind", None)
    if not isinstance(name, str) or name not in KINDS:
        raise SchemaError(f"found kind {json.dumps(name)}, expected an event of version {VERSION}")
    kind: Any = KINDS[name]
    try:
        t_s = _read(float, values.pop("t_s", "nothing"))
    except _WrongError as wrong:
        raise SchemaError(f"t_s: {wrong}") from None
    try:
        return Logged(t_s, _read(kind, values))
    except _WrongError as wrong:
        raise SchemaError(f"{name}: {wrong}") from None


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits, or 1,000 brackets
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise SchemaError(f"found {line.strip()[:40]!r}, expected JSON ({why})") from None
    if not isinstance(found, dict):
        raise SchemaError(f"found {line.strip()[:40]!r}, expected an object")
    return found


class _WrongError(ValueError):
    """A value that does not fit: where it is, what was found and expected."""

    def __init__(self, found: object, expected: str, *, inside: str = "") -> None:
        self.found, self.expected, self.inside = found, expected, inside

    def __str__(self) -> str:
        place = f"{self.inside}: " if self.inside else ""
        return f"{place}found {json.dumps(self.found)}, expected {self.expected}"


_SCALARS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _required(kind: Any) -> frozenset[str]:
    """The fields without a default. One that has it was added later, and older logs of this version lack it."""
    return frozenset(field.name for field in fields(kind) if field.default is MISSING)


def _inner(kind: Any) -> Any:
    """The T of `T | None`."""
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    return inner


@cache
def _words(kind: Any) -> str:
    """A type in words for people."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    match get_origin(kind), get_args(kind):
        case origin, _ if origin is UnionType:
            return f"{_words(_inner(kind))}, or null"
        case origin, (item, *_) if origin is tuple:
            return f"a list of {_words(item)}"
        case origin, (key, item) if origin is Mapping:
            return f"an object that gives {_words(item)} by {'number' if key is int else 'name'}"
    if issubclass(kind, Enum):
        return " | ".join(json.dumps(each.value) for each in kind)
    return f"an object with {', '.join(_hints(kind))}"


def _read(kind: Any, found: Any) -> Any:
    """A value of one type from JSON. Raises _WrongError."""
    if type(found) is kind and kind in _SCALARS:
        return found
    if kind is float and found is None:
        return math.nan
    if kind is float and type(found) is int:
        with suppress(OverflowError):
            return float(found)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if found is None else _read(_inner(kind), found)
    if origin is tuple and isinstance(found, list):
        return tuple(_read(arguments[0], each) for each in found)
    if origin is Mapping and isinstance(found, dict):
        key, item = arguments
        values = [_read(item, value) for value in found.values()]
        with suppress(ValueError):
            return dict(zip(map(key, found), values, strict=True))
    elif origin is None and issubclass(kind, Enum):
        with suppress(ValueError):
            return kind(found)
    elif (
        origin is None and isinstance(found, dict) and _required(kind) <= found.keys() <= _hints(kind).keys()
    ):
        return _read_record(kind, found)
    raise _WrongError(found, _words(kind))


def _read_record(kind: Any, found: Mapping[str, Any]) -> Any:
    values = {}
    for name, value in found.items():
        try:
            values[name] = _read(_hints(kind)[name], value)
        except _WrongError as wrong:
            inside = f"{name}.{wrong.inside}" if wrong.inside else name
            raise _WrongError(wrong.found, wrong.expected, inside=inside) from None
    return kind(**values)


# -- documentation ------------------------------------------------------------------------------------------


def table() -> str:
    """All events as a table in Markdown: their names in the log, their fields, and what they say."""
    lines = ["| `kind` | fields | |", "|---|---|---|"]
    for name, kind in KINDS.items():
        explained = "; ".join(f"`{each}` {_words(hint)}" for each, hint in _hints(cast("Any", kind)).items())
        says = " ".join((kind.__doc__ or "").split())
        lines.append(f"| `{name}` | {explained.replace('|', 'or')} | {says} |")
    return "\n".join(lines) + "\n"
