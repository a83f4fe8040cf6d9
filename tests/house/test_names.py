"""Names: a public class name means one thing within a package."""

import ast
from collections import defaultdict

import pytest

from tests.house.floors import PACKAGES, module_files, parsed


def public_classes(package: str) -> dict[str, list[str]]:
    """The modules that define each public class of a package."""
    found = defaultdict(list)
    for module, path in module_files(package).items():
        for statement in parsed(path).body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                found[statement.name].append(module)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_public_classes_of_a_package_share_a_name(package: str) -> None:
    twice = {name: modules for name, modules in public_classes(package).items() if len(modules) > 1}
    assert twice == {}
