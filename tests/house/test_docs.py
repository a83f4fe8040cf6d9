"""The pages name only what exists: links, anchors, files, functions and classes (commands: `test_commands.py`)."""

import ast
import configparser
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agileml.events.schema import KINDS
from tests.house.floors import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
)
FOLDERS = (
    "agileml",
    "examples",
    "bidbrain",
    "straggler",
    "pipeline",
    "tests",
    "benchmarks",
    "configs",
    "docs",
)
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
REPOSITORY_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w*]")
PYTHON_FILE = re.compile(r"(?<![\w./-])((?:\w+/)*\w+\.py)(?::([A-Za-z_][\w.]*))?")
EXAMPLES = {"linear.py", "net.py", "train.py", "digits.py", "mymodel.py"}  # files of the reader's own


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=name_of)


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        if not found.exists() or (anchor and anchor not in slugs(found)):
            wrong.append(target)
    assert not wrong


@each_page
def test_no_marks_of_a_merge_are_left(page: Path) -> None:
    assert not re.findall(r"^(?:<{7}|={7}|>{7})", page.read_text(), re.M)


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").rglob("*.svg"))], ids=name_of)
def test_files_exist(page: Path) -> None:
    named = {path.rstrip("/.") for path in REPOSITORY_PATH.findall(page.read_text())}
    assert not sorted(path for path in named if not any(ROOT.glob(path)))


@cache
def python_files() -> dict[Path, str]:
    """By path, `/` and its name in the repository."""
    return {path: f"/{name_of(path)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


@cache
def definitions(path: Path) -> frozenset[str]:
    """What a module defines: `function`, `Class`, `Class.method`, `CONSTANT`."""

    def of(body: list[ast.stmt], within: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield within + node.name
                if isinstance(node, ast.ClassDef):
                    yield from of(node.body, f"{within}{node.name}.")
            elif isinstance(node, ast.Assign):
                yield from (within + target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield within + node.target.id

    return frozenset(of(parsed(path).body, ""))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def is_defined(name: str) -> bool:
    """Whether a module of ours defines `Class` or `Class.method`; only files that may are parsed."""
    begins = re.compile(
        rf"^ *(?:class|def) {name.partition('.')[0]}\b|^ *{name.partition('.')[0]} ?[:=]", re.M
    )
    return any(name in definitions(path) for path in python_files() if begins.search(text_of(path)))


@each_page
def test_modules_and_functions_exist(page: Path) -> None:
    wrong = []
    for words in IN_BACKTICKS.findall(page.read_text()):
        for file, function in PYTHON_FILE.findall(words):
            found = [path for path, name in python_files().items() if name.endswith(f"/{file}")]
            if file not in EXAMPLES and not any(not function or function in definitions(p) for p in found):
                wrong.append(f"{file}:{function}" if function else file)
    assert not wrong


# Names of others' programs and formats that look like classes.
NOT_OURS = {"CreateFleet", "RunInstances", "If-Match", "LogisticRegression", "MinIO"}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name == "design" or page.name == "architecture.md"],
    ids=name_of,
)
def test_classes_exist(page: Path) -> None:
    named = {
        word
        for word in IN_BACKTICKS.findall(page.read_text())
        if re.fullmatch(r"[A-Z][a-z]\w*(\.\w+)?", word)
    }
    assert not sorted(name for name in named - NOT_OURS if not is_defined(name))


@each_page
def test_the_python_on_a_page_imports_what_exists(page: Path) -> None:
    wrong = []
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOLDERS:
                module = importlib.import_module(str(node.module))
                wrong += [
                    f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name)
                ]
    assert not wrong


@each_page
def test_events_exist(page: Path) -> None:
    named = re.findall(r"\bevents? `([a-z_]+)`", page.read_text())
    assert [name for name in named if name not in KINDS] == []


def test_each_dependency_has_its_reason() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = parser["options.extras_require"]
    lines = "\n".join((parser["options"]["install_requires"], *extras.values())).split()
    wanted = {re.split(r"[\[<>=~]", line)[0].lower() for line in lines if line}
    page = (ROOT / "docs" / "design" / "dependencies.md").read_text()
    told = {name.lower() for name in re.findall(r"^\| ([a-zA-Z][\w-]+) \|", page, re.M)}
    assert told - {"package"} == wanted


@pytest.mark.parametrize("folder", ["agileml", "agileml/core", "bidbrain"])
def test_the_map_has_every_room(folder: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split(f"| room of `{folder}` |")[1].split("\n\n")[0]
    named = {
        name for cell in re.findall(r"^\| (.*?) \|", table, re.M) for name in re.findall(r"`([\w.]+)`", cell)
    }
    rooms = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    assert rooms == {name for name in named if not name.endswith(".py")}
