"""YAML text in, plain values with the place of every key out; and every error as one sentence.

The YAML is the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) on PyYAML's parser:
`1e-3` is a number, `yes` and `2016-03-01` are text, and a key that comes twice is an error instead of a
silent choice. A value that comes from the command line (`--set key.path=value`) is read the same way.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Key = tuple[str | int, ...]
MOST_VALUES = 1_000_000
TYPE_NAME = re.compile(r"[a-z][a-z-]*[0-9][a-z0-9-]*\.[a-z0-9-]+")  # c4.xlarge, u-6tb1.metal


class ConfigError(ValueError):
    """A setting that cannot be used: one sentence.

    `detail` says what was found and what is expected; `key` is the path of the setting inside the config;
    `source` is the file with its line, or the `--set` flag, that it came from ("" when not known yet:
    `Document.blame` fills it in).
    """

    def __init__(self, detail: str, *, key: Key = (), source: str = "") -> None:
        self.detail, self.key, self.source = detail, key, source
        super().__init__(": ".join(part for part in (source, key_path(key), detail) if part))


def key_path(key: Key) -> str:
    """`("plan", 0, "at_clock")` as `plan[0].at_clock`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


def show(value: object) -> str:
    """A value as the sentences print it: short, and as one would write it in YAML."""
    match value:
        case None:
            text = "nothing"
        case bool():
            text = str(value).lower()
        case str():
            text = repr(value)
        case list() | tuple():
            text = "the list " + str(list(value))
        case dict():
            text = "the keys " + ", ".join(map(str, value)) if value else "an empty mapping"
        case _:
            text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Every value by its path: `{"optimizer": {"kind": "sgd"}}` as `{"optimizer.kind": "sgd"}`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest right one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"


# (tag, what the scalar must look like, first characters)
CORE_SCHEMA: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own way)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in CORE_SCHEMA:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            _tag, re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
        )


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value.lower()
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def dump_yaml(values: object) -> str:
    """Plain values as YAML text that `parse_yaml` reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=100)


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Key, int]]:
    """`(values, line of each key)`; lines count from 1.

    Raises ConfigError: the text is not YAML, or has a key twice.
    """
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"is not text that YAML allows ({error})".replace("\n", " "), source=source
        ) from None
    try:
        node = loader.get_single_node()
        lines = dict(_lines(node, source)) if node is not None else {}
        if node is not None and (found := _written_out(node, {})) > MOST_VALUES:
            raise ConfigError(
                f"has {found} values where its aliases are written out, expected at most {MOST_VALUES}",
                source=source,
            )
        return (loader.construct_document(node) if node is not None else None), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}" if mark else "somewhere"
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{line} is not valid YAML: {why}", source=source) from None
    except RecursionError:
        raise ConfigError("is nested too deeply", source=source) from None
    except (ValueError, AttributeError) as error:  # of PyYAML, at a value that is not what its tag says
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"has a value that is not what its tag says ({error})", source=source) from None
    finally:
        loader.dispose()


def _lines(root: yaml.Node, source: str) -> Iterator[tuple[Key, int]]:
    seen: set[int] = set()  # an alias is visited once: no explosion
    above: list[int] = []

    def walk(node: yaml.Node, key: Key) -> Iterator[tuple[Key, int]]:
        if id(node) in above:
            raise ConfigError("is a part of itself, by an alias", key=key, source=source)
        if id(node) in seen:
            return
        seen.add(id(node))
        above.append(id(node))
        yield from inside(node, key)
        above.pop()

    def inside(node: yaml.Node, key: Key) -> Iterator[tuple[Key, int]]:
        if isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for name, value in node.value:
                line = name.start_mark.line + 1
                if not isinstance(name, yaml.ScalarNode):
                    raise ConfigError(
                        f"line {line} has a list or a mapping as a key, expected a word (an unfilled {{{{...}}}} of a "
                        "template looks so)",
                        key=key,
                        source=source,
                    )
                if name.value in first and name.value != "<<":
                    raise ConfigError(
                        f"the key comes twice, in lines {first[name.value]} and {line}; expected once",
                        key=(*key, name.value),
                        source=source,
                    )
                first[name.value] = line
                yield (*key, name.value), line
                yield from walk(value, (*key, name.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                yield (*key, index), value.start_mark.line + 1
                yield from walk(value, (*key, index))

    yield from walk(root, ())


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node has with its aliases written out, as `<<` and errors write them: ten lines, each with ten
    aliases of the one before, would fill the memory. No node is a part of itself (`_lines`)."""
    if id(node) not in known:
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        each = (part for pair in below for part in (pair if isinstance(pair, tuple) else (pair,)))
        known[id(node)] = 1 + sum(_written_out(part, known) for part in each)
    return known[id(node)]


@dataclass
class Document:
    """The values of one config and where each came from."""

    source: str
    values: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    flags: dict[Key, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Document:
        """Raises ConfigError: no such file, not readable, not YAML, not a mapping."""
        source = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(
                "no such file, expected a YAML config (`proteus configs` lists those that come with Proteus)",
                source=source,
            ) from None
        except IsADirectoryError:
            raise ConfigError("is a folder, expected a YAML config", source=source) from None
        except UnicodeDecodeError:
            raise ConfigError("is not UTF-8 text, expected a YAML config", source=source) from None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", source=source) from None
        values, lines = parse_yaml(text, source)
        if values is None:
            raise ConfigError("is empty, expected keys such as `application: mf`", source=source)
        if not isinstance(values, dict):
            raise ConfigError(f"found {show(values)}, expected keys such as `application: mf`", source=source)
        return cls(source, values, lines)

    def put(self, name: str, value: Any) -> None:
        """Replace a top key by a value of Python's."""
        self.values[name] = value
        self.flags[name,] = "argument"

    def set(self, flag: str, words: Mapping[str, str | None] | None = None) -> None:
        """Apply one `key.path=value`; the value is YAML, list items are named by number (`plan.0.join=2`), and names
        with dots stand in quotes (`market.on_demand."c4.xlarge"=0.2`).

        `words` has the sections that may also be one word, each with the key that the word stands for, if any.
        """
        source = f"--set {flag}"
        path, equals, text = flag.partition("=")
        key = _key_of(path.strip())
        if not equals or "" in key:
            raise ConfigError("expected the form key.path=value, such as clocks=100", source=source)
        value, _ = parse_yaml(text, source)
        here: Any = self.values
        for depth, part in enumerate(key[:-1]):
            if isinstance(here, dict) and here.get(part) is None:
                here[part] = {}
            here = _step(here, part, key[:depth], source)
        if isinstance(here, list):
            _step(here, key[-1], key[:-1], source)
        elif not isinstance(here, dict):
            instead = _instead(key, here, text, words or {})
            raise ConfigError(f"is {show(here)} and holds no keys{instead}", key=key[:-1], source=source)
        here[key[-1]] = value
        self.flags[key] = source

    def blame(self, error: ConfigError) -> ConfigError:
        """The same error with the file and line, or the flag, that its key came from."""
        if error.source:
            return error
        detail = error.detail + self._quoted(error)
        return ConfigError(detail, key=error.key, source=self._origin(error.key))

    def _quoted(self, error: ConfigError) -> str:
        """The end of a sentence about a flag that cut the name of a machine type at its dot: how to write it."""
        above, length = error.key[:-1], len(error.key)
        for key in reversed(self.flags):
            name = ".".join(map(str, key[length - 1 :]))
            if above and key[:length] == error.key and TYPE_NAME.fullmatch(name):
                return f"; a name with dots stands in quotes: --set '{key_path(above)}.\"{name}\"=...'"
        return ""

    def _origin(self, key: Key) -> str:
        flags = list(reversed(self.flags.items()))
        for set_key, flag in flags:
            if key[: len(set_key)] == set_key:
                return flag
        if key and key not in self.lines:
            for set_key, flag in flags:
                if set_key[: len(key)] == key:
                    return flag
        for length in range(len(key), 0, -1):
            if (line := self.lines.get(key[:length])) is not None:
                return f"{self.source}:{line}"
        return self.source


def _key_of(path: str) -> Key:
    """The parts of `key.path`: numbers of list items as such, a part in quotes as it is, with its dots."""
    parts = re.split(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)', path)  # at dots outside of quotes
    return tuple(
        int(part) if part.isdecimal() else part[1:-1] if re.fullmatch(r'"[^"]+"', part) else part
        for part in parts
    )


def _step(here: Any, part: str | int, key: Key, source: str) -> Any:
    if isinstance(here, dict) and part in here:
        return here[part]
    if isinstance(here, list):
        if isinstance(part, int) and part < len(here):
            return here[part]
        raise ConfigError(f"is a list of {len(here)}, found no item {part}", key=key, source=source)
    raise ConfigError(f"is {show(here)} and holds no keys", key=key, source=source)


def _instead(key: Key, word: Any, value: str, words: Mapping[str, str | None]) -> str:
    """The end of a sentence about a section that is one word already: what to write to have both."""
    if len(key) != 2 or key[0] not in words:
        return ""
    section, name = key
    kind = words[str(section)]
    if kind is None:
        return f": expected --set '{section}={{{name}: {value}}}', which is {section}=true with that value"
    return f": expected --set '{section}={{{kind}: {word}, {name}: {value}}}'"


def apply_flags(
    document: Document, flags: Sequence[str], words: Mapping[str, str | None] | None = None
) -> Document:
    """Apply every `--set` in order (the last one wins); `words` as in `Document.set`."""
    for flag in flags:
        document.set(flag, words)
    return document


def located(
    error: ConfigError, path: Path, flags: Sequence[str], words: Mapping[str, str | None]
) -> ConfigError:
    """An error about a key of the config in a file, with the line or the flag that the key came from.

    The line is left out where the file cannot be read again, as a pipe.
    """
    try:
        return apply_flags(Document.read(path), flags, words).blame(error)
    except ConfigError:
        return ConfigError(error.detail, key=error.key, source=error.source or str(path))
