"""Sizes: what is long says why. A module does so in its docstring, a function in its own: "Long because ..."."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.floors import PACKAGES, ROOT, module_files, parsed

MOST_LINES = 400  # of a file
MOST_FUNCTION_LINES = 60
REASON = "long because"


def long_ones(module: str, path: Path) -> Iterator[str]:
    """The module, if it is long, and its long functions, but those that say why."""
    text = path.read_text()
    tree = parsed(path)
    if text.count("\n") > MOST_LINES and not _has_reason(tree):
        yield module
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_FUNCTION_LINES and not _has_reason(node):
                yield f"{module}.{node.name}"


def _has_reason(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return REASON in " ".join((ast.get_docstring(node) or "").lower().split())


@pytest.mark.parametrize("package", PACKAGES)
def test_long_modules_and_functions_say_why(package: str) -> None:
    found = [name for module, path in module_files(package).items() for name in long_ones(module, path)]
    assert found == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_other_long_files_say_why(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert [str(file) for file in files if file.name in long_ones(file.name, file)] == []
