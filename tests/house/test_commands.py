"""The commands that the pages show exist, with their options, and a reader who copies one has all its arguments."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from agileml.cli import app
from tests.house.floors import parsed
from tests.house.test_docs import IN_BACKTICKS, ROOT, each_page

PROTEUS = re.compile(r"(?:^|[ /(])proteus ([a-z][^|;)]*)")
PROGRAM = re.compile(r"(?:^|[ /])python (-m [\w.]+|[\w/]+\.py)([^|;)]*)")
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"^ {4}(.*)$", re.M)
TABLE = re.compile(r"^\|.*\|\n\|[ \-:|]+\|\n(?:\|.*\|\n?)+", re.M)


def words_of(shown: str) -> list[str]:
    try:
        return shlex.split(shown)
    except ValueError:
        return shown.split()


def to_copy(text: str) -> Iterator[str]:
    """The lines that a reader copies: of code blocks, and of the columns of tables that are headed `command`."""
    for block in [*BLOCK.findall(text), *INDENTED.findall(text)]:
        yield from (line.partition(" #")[0] for line in block.replace("\\\n", " ").splitlines())
    for table in TABLE.findall(text):
        head, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
        for row in rows:
            for title, cell in zip(head, row, strict=False):
                if title == "command":
                    yield from IN_BACKTICKS.findall(cell)


def shown(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[bool, re.Match[str]]]:
    """Every match in what a page shows as code; true for what a reader copies, false for running text."""
    copied = list(to_copy(text))
    for line in copied:
        yield from ((True, match) for match in pattern.finditer(line))
    for words in IN_BACKTICKS.findall(text):
        yield from ((False, match) for match in pattern.finditer(words) if words not in copied)


@cache
def root_command() -> Any:
    return typer.main.get_command(app)


def mistakes_of_proteus(words: list[str], is_whole: bool) -> list[str]:
    command, rest = root_command(), list(words)
    while rest and (inner := getattr(command, "commands", {}).get(rest[0])) is not None:
        command, rest = inner, rest[1:]
    if len(rest) == len(words):
        return ["no such command"]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    given = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)}
    if unknown := given - known - {"--help"}:
        return [f"no option {option}" for option in sorted(unknown)]
    if not is_whole or "--help" in given:
        return []
    if getattr(command, "commands", None) and not command.invoke_without_command:
        return ["names a group of commands, and none of it"]
    values, _, _ = command.make_parser(command.context_class(command)).parse_args(rest)
    return [
        f"argument {parameter.name} is missing"
        for parameter in command.params
        if parameter.param_type_name == "argument" and parameter.required and not values.get(parameter.name)
    ]


@cache
def arguments_of(program: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    """What an argparse program takes: its options, and the positional arguments that it cannot do without."""
    options, demanded = set[str](), list[str]()
    for call in ast.walk(parsed(program)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".add_argument"):
            names = [each.value for each in call.args if isinstance(each, ast.Constant)]
            options |= {name for name in names if name.startswith("-")}
            optional = any(
                each.arg == "nargs" and ast.unparse(each.value) in "'?' '*'" for each in call.keywords
            )
            demanded += [name for name in names if not name.startswith("-") and not optional]
    return frozenset(options), tuple(demanded)


def file_of(name: str) -> Path | None:
    """The file that `python NAME` runs, if it is one of ours."""
    if name.startswith("-m "):
        module = ROOT / name.removeprefix("-m ").replace(".", "/")
        found = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
    else:
        found = ROOT / name
    return found if found.exists() else None


@each_page
def test_proteus_knows_its_commands(page: Path) -> None:
    wrong = []
    for is_whole, match in shown(page.read_text(), PROTEUS):
        words = words_of(match[1])
        wrong += [f"proteus {' '.join(words)}: {each}" for each in mistakes_of_proteus(words, is_whole)]
    assert not wrong


@each_page
def test_programs_know_their_options(page: Path) -> None:
    wrong = []
    for is_whole, match in shown(page.read_text(), PROGRAM):
        program, words = file_of(match[1]), words_of(match[2])
        if program is None:
            continue  # a file of the reader's own; `test_files_exist` sees the others
        options, demanded = arguments_of(program)
        given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        wrong += [f"{match[0]}: no option {option}" for option in sorted(given - options)]
        if is_whole and demanded and not words:
            wrong.append(f"{match[0]}: argument {demanded[0]} is missing")
    assert not wrong


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("| question | command |\n| --- | --- |\n| why? | `proteus chaos` |\n", "argument config is missing"),
        ("    proteus chaos --seed 1\n", "argument config is missing"),
        ("```\nproteus chaos configs/mf.yaml --sed 1\n```\n", "no option --sed"),
        ("`proteus chaoss`", "no such command"),
        ("    proteus market\n", "names a group of commands, and none of it"),
        ("`proteus chaos` injects faults", None),
        ("    proteus chaos configs/mf.yaml --seed 1\n", None),
    ],
)
def test_a_mistake_is_found(text: str, mistake: str | None) -> None:
    found = [
        each
        for is_whole, match in shown(text, PROTEUS)
        for each in mistakes_of_proteus(words_of(match[1]), is_whole)
    ]
    assert found == ([mistake] if mistake else [])
