"""YAML in, plain values out. A key that comes twice is an error: PyYAML takes the last one without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class YamlTextError(ValueError):
    """A file or text that cannot be used; one sentence that begins with its name."""


class _TwiceError(Exception):
    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(f"line {second}: {key} comes twice, first in line {first}; expected it once")


class _Loader(yaml.SafeLoader):
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
    try:
        return yaml.load(text, _Loader)
    except _TwiceError as error:
        raise YamlTextError(f"{source} {error}") from None
    except yaml.YAMLError as error:
        raise YamlTextError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise YamlTextError(f"{source} is nested too deeply") from None
    except (ValueError, TypeError, AttributeError) as error:  # of PyYAML: a date such as 2016-13-45
        raise YamlTextError(f"{source} has a value that is not what it looks like ({error})") from None
