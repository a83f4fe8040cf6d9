"""The base of every section of a config, and the sentences of its validation errors.

`Section` is a frozen, strict pydantic model: nothing is converted (`"3"` is no number), unknown keys are
refused with the nearest right one. `validate` turns pydantic's errors into one `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from agileml.config.text import ConfigError, Key, nearest, show

Schema = TypeVar("Schema", bound=BaseModel)
Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(ge=1, lt=2**63)]  # what a table of int64 can hold


class Section(BaseModel):
    """A mapping of a config with fixed keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for name in values:
                if name not in cls.model_fields:
                    raise ConfigError(f"unknown key, {nearest(name, cls.model_fields)}", key=(name,))
        return values

    def changed(self, **changes: Any) -> Self:
        """A copy with some keys replaced, validated like a file. Raises ConfigError."""
        return validate(type(self), {name: getattr(self, name) for name in type(self).model_fields} | changes)


def one_of(choices: Mapping[str, type[Section]], selector: str, default: str) -> Callable[[Any], Any]:
    """A validator that picks the section by the value of its key `selector`, such as `kind: adam`."""

    def choose(value: Any) -> Any:
        if isinstance(value, Section):
            return value
        if not isinstance(value, dict):
            raise ConfigError(f"found {show(value)}, expected a mapping of keys")
        chosen = value.get(selector, default)
        if not isinstance(chosen, str) or chosen not in choices:
            raise ConfigError(f"found {show(chosen)}, {nearest(chosen, choices)}", key=(selector,))
        try:
            return validate(choices[chosen], value)
        except ConfigError as error:
            detail = error.detail.replace("unknown key,", f"unknown key for {selector} {chosen},", 1)
            raise ConfigError(detail, key=error.key) from None

    return choose


def count_or(word: str) -> BeforeValidator:
    """A validator of a whole number of at least 1, or a word."""

    def check(value: Any) -> Any:
        if value == word or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        raise ConfigError(f"found {show(value)}, expected a whole number of at least 1, or {word}")

    return BeforeValidator(check)


CountOrAuto = Annotated[PositiveInt | Literal["auto"], count_or("auto")]


def validate(schema: type[Schema], values: Mapping[str, Any], key: Key = ()) -> Schema:
    """`values` as a `schema`; raises the first thing that is wrong as a ConfigError below `key`.

    Applications use it for their own `data` and `model` settings:
    `validate(MyModelSettings, config.model, ("model",))`.
    """
    try:
        return schema.model_validate(dict(values))
    except ValidationError as error:
        problems = [_problem(dict(found)) for found in error.errors(include_url=False)]
    # A mistyped key is also a missing one: the typing error is the one to tell.
    problem = next((p for p in problems if p.detail.startswith("unknown key")), problems[0])
    raise ConfigError(problem.detail, key=(*key, *problem.key))


def _problem(found: dict[str, Any]) -> ConfigError:
    kind, context = found["type"], found.get("ctx", {})
    key: Key = found["loc"]
    own = context.get("error")
    if isinstance(own, ConfigError):
        return ConfigError(own.detail, key=(*key, *own.key))
    if kind == "missing":
        return ConfigError("missing, expected a value", key=key)
    return ConfigError(f"found {show(found['input'])}, {_expected(kind, context, found['msg'])}", key=key)


def _expected(kind: str, context: dict[str, Any], message: str) -> str:
    match kind:
        case "int_type" | "int_from_float":
            return "expected a whole number"
        case "float_type":
            return "expected a number"
        case "finite_number":
            return "expected a finite number"
        case "bool_type":
            return "expected true or false"
        case "string_type":
            return "expected text"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "expected a mapping of keys"
        case "list_type" | "tuple_type":
            return "expected a list"
        case "greater_than_equal":
            return f"expected at least {context['ge']}"
        case "greater_than":
            return f"expected more than {context['gt']}"
        case "less_than_equal":
            return f"expected at most {context['le']}"
        case "less_than":
            return f"expected less than {context['lt']}"
        case "too_long" | "too_short":
            bound = "at most" if kind == "too_long" else "at least"
            return f"expected a list of {bound} {context.get('max_length', context.get('min_length'))}"
        case "literal_error":
            return f"expected {context['expected'].replace(chr(39), '')}"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return message[0].lower() + message[1:]
