"""Which modules travel: the user's, with what they import; neither Python's own nor installed ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agileml.cluster.travel import PACKAGES, code_of, user_code
from agileml.config.job import from_values

FILES = {
    "travel_net.py": "from travel_layers.dense import layer\nimport travel_helper, json, numpy",
    "travel_helper.py": "",
    "travel_layers/__init__.py": "",
    "travel_layers/dense.py": "layer = 1",
    "travel_parts/one.py": "",
    "lib/site-packages/travel_installed.py": "",
}
ELSEWHERE = {"travel_loss.py": "import travel_beside", "travel_beside.py": ""}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The working folder, and another one on the path, with modules that are imported."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder, files in ((project, FILES), (elsewhere, ELSEWHERE)):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    monkeypatch.chdir(project)
    for path in (project, elsewhere, project / "lib" / "site-packages"):
        monkeypatch.syspath_prepend(str(path))
    for module in ("travel_installed", "travel_loss", "travel_net", "travel_parts.one"):
        importlib.import_module(module)

    yield project, elsewhere
    for name in [name for name in sys.modules if name.startswith("travel_")]:
        del sys.modules[name]


def test_the_users_modules_travel(folders: tuple[Path, Path]) -> None:
    project, elsewhere = folders
    assert str(elsewhere / "travel_loss.py") not in user_code(sys.modules, [project], set())
    assert user_code(sys.modules, [project], {"travel_loss", "numpy", "json", "not_there"}) == [
        *(str(elsewhere / n) for n in ("travel_beside.py", "travel_loss.py")),
        *(str(project / n) for n in ("travel_helper.py", "travel_layers", "travel_net.py", "travel_parts")),
    ]


def test_a_config_names_modules_anywhere(folders: tuple[Path, Path]) -> None:
    project, elsewhere = folders
    model = {"module": "travel_net:make", "loss": "travel_loss:smooth"}
    found = code_of(from_values({"application": "torch", "model": model, "clocks": 1}))
    assert [Path(place).name for place in found[: len(PACKAGES)]] == list(PACKAGES)
    assert str(elsewhere / "travel_loss.py") in found and str(project / "travel_net.py") in found
    assert len(set(found)) == len(found)
    assert all(Path(place).is_dir() or place.endswith(".py") for place in found)
