"""Values in the files of `simulate`, `stragglers`, `plan`, `size` and `pipeline` are those of a job's config."""

from __future__ import annotations

import math

import pytest

from agileml.config.text import parse_yaml as parse_config
from bidbrain.files.yaml_text import YamlTextError, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0100", 100),  # and not 64
        ("08", 8),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1e-3", 0.001),  # and no text, which torch refuses as a learning rate
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("1:30", "1:30"),  # and not 90
        ("1_000", "1_000"),
        ("on", "on"),  # and not 1 where a number is wanted
        ("yes", "yes"),
        ("true", True),
        ("2016-03-01", "2016-03-01"),
        ("", None),
        ("~", None),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(f"key: {text}", "here")["key"]
    assert (found, type(found)) == (value, type(value))
    assert parse_config(f"key: {text}", "here")[0]["key"] == found


def test_keys_that_another_mapping_brings_in_may_be_said_anew() -> None:
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", "here")["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize("form", ["&x{n} [{below}]", "&x{n} {{<<: [{below}]}}"], ids=["lists", "merged keys"])
def test_aliases_of_aliases_fill_no_memory(form: str) -> None:
    lines = ["x0: &x0 {a: 1}"]
    lines += [f"x{n}: " + form.format(n=n, below=", ".join([f"*x{n - 1}"] * 10)) for n in range(1, 15)]
    with pytest.raises(YamlTextError, match=r"text has .* values where its aliases are written out"):
        parse_yaml("\n".join(lines), "text")


def test_a_list_that_holds_itself_is_a_sentence() -> None:
    with pytest.raises(YamlTextError, match="nested too deeply"):
        parse_yaml("&a [*a]", "text")
