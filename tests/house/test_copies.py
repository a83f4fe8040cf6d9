"""bidbrain, pipeline and straggler import none of our packages, so each has its own copy of a small module.

A mend of one copy is a mend of all.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIES = {
    "yaml_text.py": ("bidbrain/files", "pipeline", "straggler"),
    "whole_file.py": ("bidbrain/files", "pipeline"),
    "compiled_code.py": ("bidbrain/files", "pipeline", "straggler"),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_a_module_are_alike(name: str) -> None:
    first, *others = [(ROOT / folder / name).read_text("utf-8") for folder in COPIES[name]]
    assert all(other == first for other in others), f"{name} differs between {', '.join(COPIES[name])}"
