"""`events.jsonl`: a line that names the version, then one line of JSON for each event, made from and into its class.

    {"log": "proteus run", "version": 1}
    {"t_s": 0.8125, "kind": "cut", "clock": 40, "travel_s": 0.0123}

`t_s`: seconds since the log was opened. A number that is not finite is written as null and read as not a number.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
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
        t_s = _number(values.pop("t_s", "nothing"))
    except _WrongError as wrong:
        raise SchemaError(f"t_s: {wrong}") from None
    try:
        return Logged(t_s, _reader(kind).read(values))
    except _WrongError as wrong:
        raise SchemaError(f"{name}: {wrong}") from None


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise SchemaError(f"found {line.strip()[:40]!r}, expected JSON ({error.msg})") from None
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


@dataclass(frozen=True)
class _Reader:
    """Makes a value of one type from JSON; `words` name the type for people."""

    words: str
    read: Callable[[Any], Any]


def _number(found: Any) -> float:
    if found is None:
        return math.nan
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _WrongError(found, "a number")
    return float(found)


def _exactly(kind: type, words: str) -> _Reader:
    def read(found: Any) -> Any:
        if type(found) is not kind:
            raise _WrongError(found, words)
        return found

    return _Reader(words, read)


_SCALARS = {
    float: _Reader("a number", _number),
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "true or false"),
    str: _exactly(str, "text"),
}


@cache
def _reader(kind: Any) -> _Reader:
    if kind in _SCALARS:
        return _SCALARS[kind]
    arguments = get_args(kind)
    match get_origin(kind):
        case origin if origin is UnionType:
            (inner,) = (_reader(each) for each in arguments if each is not NoneType)
            return _Reader(
                f"{inner.words}, or null", lambda found: None if found is None else inner.read(found)
            )
        case origin if origin is tuple:
            return _list(_reader(arguments[0]))
        case origin if origin is Mapping:
            return _mapping(arguments[0], _reader(arguments[1]))
    return _one_of(kind) if issubclass(kind, Enum) else _record(kind)


def _list(item: _Reader) -> _Reader:
    words = f"a list of {item.words}"

    def read(found: Any) -> tuple[Any, ...]:
        if not isinstance(found, list):
            raise _WrongError(found, words)
        return tuple(item.read(each) for each in found)

    return _Reader(words, read)


def _mapping(key: Any, item: _Reader) -> _Reader:
    words = f"an object that gives {item.words} by {'number' if key is int else 'name'}"

    def read(found: Any) -> dict[Any, Any]:
        if not isinstance(found, dict):
            raise _WrongError(found, words)
        try:
            return {key(name): item.read(value) for name, value in found.items()}
        except _WrongError:
            raise
        except ValueError:
            raise _WrongError(found, words) from None

    return _Reader(words, read)


def _one_of(kind: type[Enum]) -> _Reader:
    words = " | ".join(json.dumps(each.value) for each in kind)

    def read(found: Any) -> Enum:
        try:
            return kind(found)
        except ValueError:
            raise _WrongError(found, words) from None

    return _Reader(words, read)


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    words = f"an object with {', '.join(readers)}"

    def read(found: Any) -> Any:
        if not isinstance(found, dict) or found.keys() != readers.keys():
            raise _WrongError(found, words)
        values = {}
        for name, reader in readers.items():
            try:
                values[name] = reader.read(found[name])
            except _WrongError as wrong:
                inside = f"{name}.{wrong.inside}" if wrong.inside else name
                raise _WrongError(wrong.found, wrong.expected, inside=inside) from None
        return kind(**values)

    return _Reader(words, read)


# -- documentation ------------------------------------------------------------------------------------------


def table() -> str:
    """All events as a table in Markdown: their names in the log, their fields, and what they say."""
    lines = ["| `kind` | fields | |", "|---|---|---|"]
    for name, kind in KINDS.items():
        hints = get_type_hints(kind)
        told = "; ".join(f"`{each.name}` {_reader(hints[each.name]).words}" for each in fields(kind))
        says = " ".join((kind.__doc__ or "").split())
        lines.append(f"| `{name}` | {told.replace('|', 'or')} | {says} |")
    return "\n".join(lines) + "\n"
