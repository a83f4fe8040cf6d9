"""The package as it is installed here, as a wheel for machines elsewhere, and the versions that it runs with.

A wheel is a zip of the packages and a few lines about them, so none has to be built: what is sent is what runs here,
local changes included. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

NAME = "proteus-train"
PACKAGES = ("agileml", "bidbrain", "pipeline", "straggler")
ENDINGS = (".py", ".csv", ".html", ".css", ".js", ".json", ".yaml", "py.typed")  # as in setup.cfg
THEN = (1980, 1, 1, 0, 0, 0)  # the first instant that a zip can hold


@dataclass(frozen=True)
class Wheel:
    """name: of the file. constraints: a pip constraints file with the versions of this environment."""

    name: str
    content: bytes
    constraints: str

    @property
    def digest(self) -> str:
        """A short name of both."""
        return hashlib.sha256(self.content + self.constraints.encode()).hexdigest()[:16]


def build_wheel() -> Wheel:
    """The packages that `import agileml` finds here, as a wheel."""
    own = distribution(NAME)
    stem = f"{NAME.replace('-', '_')}-{own.version}"
    about = f"{stem}.dist-info"
    files = dict(_files())
    files[f"{about}/METADATA"] = (own.read_text("METADATA") or own.read_text("PKG-INFO") or "").encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: proteus\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{about}/entry_points.txt"] = b"[console_scripts]\nproteus = agileml.cli:main\n"
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, THEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return Wheel(f"{stem}-py3-none-any.whl", buffer.getvalue(), constraints(own))


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None, package
        assert spec.submodule_search_locations is not None, package
        root = Path(spec.submodule_search_locations[0])
        # The folder of example configs is a link in a checkout, which `rglob` does not follow.
        walked = (
            Path(folder) / name for folder, _, names in os.walk(root, followlinks=True) for name in names
        )
        for path in sorted(walked):
            if path.name.endswith(ENDINGS) and "__pycache__" not in path.parts:
                yield str(Path(package) / path.relative_to(root)), path.read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def constraints(own: Distribution) -> str:
    """`name==version` of everything that the package needs, as it is installed here; no builds (`+cpu`)."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(each, "") for each in own.requires or ()]  # a requirement, and the extra of who has it
    while waiting:
        text, extra = waiting.pop()
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        try:
            there = distribution(name)
        except PackageNotFoundError:
            continue  # another platform's
        found[name] = there.version.partition("+")[0]
        for wanted in {"", *need.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(each, wanted) for each in there.requires or ()]
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
