"""YAML in, plain values out. A key that comes twice is an error: PyYAML takes the last one without a word.

Values are those of the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), as in a job's config: by
YAML 1.1, which PyYAML reads, 010 is 8, 1:30 is 90, 1e-3 is text and `yes` is a number where one is wanted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

MOST_VALUES = 1_000_000
# (tag, the form of the scalar, first characters)
CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", tuple("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
        tuple("-+.0123456789"),
    ),
    ("merge", r"<<", ("<",)),
)


class YamlTextError(ValueError):
    """A file or text that cannot be used; one sentence that begins with its name."""


class _TwiceError(Exception):
    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(f"line {second}: {key} comes twice, first in line {first}; expected it once")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own way)

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping as it is written, so before `<<` brings other keys in, which a mapping may say anew."""
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in first:
                    raise _TwiceError(key.value, first[key.value], line)
                first[key.value] = line
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number; PyYAML's own way takes a leading 0 for octal."""
        text = node.value.lower()
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)


for _tag, _form, _first in CORE_SCHEMA:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_yaml(path: Path) -> Any:
    """The values of a file. Raises YamlTextError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise YamlTextError(f"{path} cannot be read ({error.strerror}); expected a YAML file") from None
    except UnicodeDecodeError:
        raise YamlTextError(f"{path} is not UTF-8 text; expected a YAML file") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """The values of a text. source: what the sentences call it. Raises YamlTextError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None and (found := _written_out(node, {})) > MOST_VALUES:
            raise YamlTextError(
                f"{source} has {found} values where its aliases are written out; expected at most {MOST_VALUES}"
            )
        return loader.construct_document(node) if node is not None else None
    except _TwiceError as error:
        raise YamlTextError(f"{source} {error}") from None
    except yaml.YAMLError as error:
        raise YamlTextError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise YamlTextError(f"{source} is nested too deeply") from None
    except YamlTextError:
        raise
    except (ValueError, TypeError, AttributeError) as error:  # of PyYAML: a date such as 2016-13-45
        raise YamlTextError(f"{source} has a value that is not what it looks like ({error})") from None
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node has with its aliases written out, as `<<` does: ten lines, each with ten aliases of the
    one before, would fill the memory."""
    if id(node) not in known:
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        each = (part for pair in below for part in (pair if isinstance(pair, tuple) else (pair,)))
        known[id(node)] = 1 + sum(_written_out(part, known) for part in each)
    return known[id(node)]
