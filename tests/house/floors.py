"""The folders of a package as floors: who imports whom at every level, read from the source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agileml", "bidbrain", "straggler", "pipeline")


def module_files(package: str, root: Path = ROOT) -> dict[str, Path]:
    """The modules of a package by dotted name; a folder goes by its own name."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((root / package).rglob("*.py"))
    }


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once."""
    return ast.parse(path.read_text())


def imported_modules(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """What a file imports of its own package, also inside functions; not what only type checkers read."""
    for node in _run_time_statements(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from (
                    name for name in (full, node.module)[: 1 if full in modules else 2] if name in modules
                )


def _run_time_statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node; no expressions, which are most of a tree and import nothing."""
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for field in ("orelse",) if is_for_types else ("body", "handlers", "cases", "orelse", "finalbody"):
        for below in getattr(node, field, ()):
            yield below
            yield from _run_time_statements(below)


@cache
def levels(package: str) -> dict[str, dict[str, set[str]]]:
    """For every folder of a package the arrows between the names in it: {folder: {name: names that it imports}}.

    A folder's own `__init__` is left out: it may name what lies in its rooms.
    """
    modules = module_files(package)
    folders = {name for name, path in modules.items() if path.name == "__init__.py"}
    found: dict[str, dict[str, set[str]]] = {}
    for name in modules:
        if name != package:
            found.setdefault(name.rpartition(".")[0], {})[name] = set()
    for name, path in modules.items():
        for other in imported_modules(path, modules):
            for folder in folders:
                inside = f"{folder}."
                if name.startswith(inside) and other.startswith(inside):
                    a, b = (f"{inside}{full.removeprefix(inside).split('.')[0]}" for full in (name, other))
                    if a != b:
                        found[folder][a].add(b)
    return found


def floors(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The floor of every name: one above the highest that it imports. Raises CycleError."""
    order = TopologicalSorter(arrows).static_order()
    floor: dict[str, int] = {}
    for name in order:
        floor[name] = max((floor[below] + 1 for below in arrows.get(name, ())), default=0)
    return floor


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle among the arrows, empty where there is none."""
    try:
        floors(arrows)
    except CycleError as error:
        return list(error.args[1])
    return []
