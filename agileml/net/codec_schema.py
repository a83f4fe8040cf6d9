"""Schema of messages, read from their annotations: the types that they reach and what each field may hold."""

import dataclasses
import enum
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

_SCALARS: dict[type, tuple[type, ...]] = {
    type(None): (type(None),),
    bool: (bool,),
    int: (int,),
    float: (float, int),  # as Python's type checkers have it
    str: (str,),
    bytes: (bytes,),
    tuple: (tuple,),
    dict: (dict,),
    np.ndarray: (np.ndarray,),
}
_REFUSED = (list, set, frozenset, bytearray)


def reachable_types(roots: Iterable[type]) -> dict[type, None]:
    """Give the roots and every dataclass and enum that their annotations name, each once, in a fixed order.

    Raises TypeError where one of them cannot be a message.
    """
    found: dict[type, None] = {}
    waiting = list(roots)
    while waiting:
        cls = waiting.pop(0)
        if cls in found:
            continue
        found[cls] = None
        if issubclass(cls, enum.Enum):
            continue
        waiting += [
            part
            for annotation in _annotations(cls).values()
            for part in _parts(annotation)
            if isinstance(part, type) and (dataclasses.is_dataclass(part) or issubclass(part, enum.Enum))
        ]
    return found


def field_kinds(
    cls: type, known: Iterable[type], numpy_dtypes: Iterable[np.dtype[Any]]
) -> tuple[tuple[type, ...] | None, ...]:
    """Give for each field of a dataclass the types that its value may have, or None where any will do.

    An annotated class allows those of `known` that derive from it. A scalar of one of the numpy_dtypes (np.int64)
    arrives as a Python number, so its annotation allows that.
    """
    scalars = {dtype.type for dtype in numpy_dtypes}
    known = tuple(known)
    annotations = _annotations(cls)
    return tuple(_kinds(annotations[field.name], known, scalars) for field in dataclasses.fields(cls))


def _annotations(cls: type) -> dict[str, Any]:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"{cls!r} is neither a dataclass nor an enum")
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__name__} must be frozen: messages do not change")
    fields = dataclasses.fields(cls)
    hidden = [field.name for field in fields if not field.init]
    if hidden:
        raise TypeError(f"{cls.__name__}.{hidden[0]} is no argument of __init__, so it cannot be decoded")
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise TypeError(f"the annotations of {cls.__name__} do not resolve: {error}") from error
    for field in fields:
        for part in _parts(hints[field.name]):
            if isinstance(part, type) and issubclass(part, _REFUSED):
                raise TypeError(f"{cls.__name__}.{field.name} is a {part.__name__}: use a tuple")
    return {field.name: hints[field.name] for field in fields}


def _parts(annotation: Any) -> list[Any]:
    """Give the annotation's own type and those of its arguments, through unions, aliases and new types."""
    annotation = _plain(annotation)
    origin = typing.get_origin(annotation)
    if origin is None:
        return [annotation]
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    if isinstance(origin, type) and issubclass(origin, np.ndarray):
        return [np.ndarray]
    parts = [origin] if isinstance(origin, type) else []
    for argument in typing.get_args(annotation):
        if argument is not Ellipsis and isinstance(argument, Hashable):
            parts += _parts(argument)
    return parts


def _plain(annotation: Any) -> Any:
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):  # `type X = ...`, Python 3.12
            annotation = annotation.__value__
        else:
            return type(None) if annotation is None else annotation


def _kinds(annotation: Any, known: tuple[type, ...], scalars: set[type]) -> tuple[type, ...] | None:
    annotation = _plain(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        together: list[type] = []
        for argument in typing.get_args(annotation):
            kinds = _kinds(argument, known, scalars)
            if kinds is None:
                return None
            together += kinds
        return tuple(dict.fromkeys(together))
    if origin is typing.Literal:
        return tuple(dict.fromkeys(type(value) for value in typing.get_args(annotation)))
    if origin is not None:
        annotation = origin
    if not isinstance(annotation, type) or annotation is object:
        return None
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if issubclass(annotation, Mapping) or annotation is Mapping:
        return (dict,)
    if annotation in scalars:
        return (float, int) if issubclass(annotation, np.floating) else (int, bool)
    return tuple(cls for cls in known if issubclass(cls, annotation)) or None
