"""Hooks of mkdocs.yml: pages of the site that do not lie in docs/, and the files that pages link to."""

import importlib
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages from outside docs/, by their path in the repository.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")

# The Python reference: what `import agileml` offers, and the modules that are made to be built on.
MODULES = {
    "What an application returns and is asked for": ["agileml.application"],
    "Bidding policies": ["bidbrain.policy.base"],
    "Clouds": ["bidbrain.live.cloud"],
    "Consistency": ["straggler.consistency"],
    "Checkpoint stores": ["agileml.checkpoints.store"],
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, the reference, and what any page links to outside docs/."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=_rewritten((ROOT / path).read_text(), path)))
    files.append(File.generated(config, "api.md", content=reference()))
    for file in list(files.documentation_pages()):
        if file.src_uri not in (*PAGES.values(), "api.md"):
            text = (ROOT / "docs" / file.src_uri).read_text()
            for outside in sorted(_outside(text, f"docs/{file.src_uri}")):
                if files.get_file_from_path(f"source/{outside}") is None:
                    content = (ROOT / outside).read_text()
                    files.append(File.generated(config, f"source/{outside}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of a page in docs/ to pages and files outside."""
    if page.file.src_uri in (*PAGES.values(), "api.md"):
        return markdown
    return _rewritten(markdown, f"docs/{page.file.src_uri}")


def reference() -> str:
    """The page of the Python reference."""
    package = importlib.import_module("agileml")
    homes = {name: package._HOMES.get(name, "agileml.application") for name in package.__all__}
    lines = ["# Python reference", "", "## agileml", ""]
    names = [name for name in package.__all__ if homes[name] != "agileml.application"]
    lines += [f"::: {homes[name]}.{name}\n" for name in names]
    for title, modules in MODULES.items():
        lines += [f"## {title}", ""] + [f"::: {module}\n" for module in modules]
    return "\n".join(lines)


def _target(link: str, path: str) -> str:
    """Where a link of the page `path` leads, as a path in the repository."""
    return normpath(str(PurePosixPath(path).parent / link))


def _outside(text: str, path: str) -> set[str]:
    """The files of the repository outside docs/ that a page links to and that are no pages."""
    targets = {_target(link, path) for _, link, _, _ in LINK.findall(text)}
    return {
        t for t in targets if not t.startswith(("docs/", "..")) and t not in PAGES and (ROOT / t).is_file()
    }


def _rewritten(text: str, path: str) -> str:
    """The page with its links as they are in the site."""
    here = PAGES.get(path, path.removeprefix("docs/"))

    def replaced(found: re.Match[str]) -> str:
        target = _target(found[2], path)
        if not (ROOT / target).exists():
            return found[0]  # the build says so
        there = PAGES.get(target) or (
            target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}"
        )
        link = relpath(there, str(PurePosixPath(here).parent))
        return f"{found[1]}{link}{found[3] or ''}{found[4]}"

    return LINK.sub(replaced, text)
