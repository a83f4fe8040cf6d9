"""The manifest of a checkpoint. It is written last, and lists the files and the identity of the run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import PurePath
from typing import Any, Self
from urllib.parse import urlsplit
from zlib import crc32

from agileml.application import Application, Table, without_secrets
from agileml.checkpoints.errors import DamagedError
from agileml.checkpoints.format import FORMAT
from agileml.config.job import JobConfig
from agileml.config.text import flat
from agileml.core.parameters.layout import partitions_for
from agileml.core.protocol.view import CutId

NOT_SET = "nothing"
PACKAGE = "proteus-train"
LAST_S = 253_402_300_800  # Unix time of the year 10000, which no date has


def folder_of(name: CutId) -> str:
    """The folder of a checkpoint, relative to the store."""
    return f"clock-{name.clock}-{name.epoch}"


def part_file(partition: int) -> str:
    """The file of a part, relative to its checkpoint's folder."""
    return f"part-{partition}.safetensors"


MANIFEST = "manifest.json"


@dataclass(frozen=True)
class PartInfo:
    """Size and checksum of a part that was written."""

    partition: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Identity:
    """The settings in which a run and the checkpoint that it resumes from must agree. Plain JSON values.

    Machines, stages, plans, the number of clocks, and how often cuts and checkpoints are taken may differ.
    """

    application: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    consistency: Mapping[str, Any]
    deterministic: bool
    seed: int
    slices: int
    units_per_slice: int
    clocks_per_pass: int
    partitions: int
    tables: Mapping[str, str]
    version: str

    @classmethod
    def of(
        cls,
        config: JobConfig,
        tables: Sequence[Table],
        application: Application | None = None,
        borders: Sequence[Sequence[int]] = (),
    ) -> Self:
        """The identity of a run; `application`: an instance of the user's, None for the config's own.

        Of `data.path` the last part counts, of a list that of each path: the same files may lie elsewhere; of other web
        addresses all but what is a secret. borders: where the partitions end in each table, in a pipeline, whose
        layers say how many there are.
        """
        plain = _public(config.model_dump(mode="json"))
        data = dict(plain["data"])
        for key in ("path", "test"):
            if key in data:
                data[key] = _file_names(data[key])
        own = type(application)
        return cls(
            application=config.application if application is None else f"{own.__module__}:{own.__qualname__}",
            data=data,
            model=plain["model"],
            # Without these as in checkpoints from before there were any.
            optimizer={
                key: value
                for key, value in plain["optimizer"].items()
                if key not in ("groups", "sharded") or value
            },
            # Without keys of kinds that it is not.
            consistency={key: value for key, value in plain["consistency"].items() if value is not None},
            deterministic=config.deterministic,
            seed=config.seed,
            slices=config.slices,
            units_per_slice=config.units_per_slice,
            clocks_per_pass=config.clocks_per_pass,
            partitions=(len(borders[0]) if borders else config.partitions)
            or partitions_for(tables, config.machines.max, overlaps=bool(config.overlap)),
            tables={
                table.name: _shown(
                    table,
                    is_gathered=bool(config.overlap and index and not table.sparse),
                    borders=borders[index] if borders else (),
                )
                for index, table in enumerate(tables)
            },
            version=version(PACKAGE),
        )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read what a manifest holds; one of another version may say more, or less (None), or have secrets in it.
        Raises TypeError."""
        plain = _public(plain)
        if plain["version"] == version(PACKAGE):
            return cls(**plain)
        known: dict[str, Any] = {field.name: plain.get(field.name) for field in fields(cls)}
        return cls(**known)


def _public(value: Any) -> Any:
    """A value without the secrets of addresses in its texts. A query may be one, or name the data: of that a checksum
    stays, and of a user and a password, which could be guessed from it, nothing."""
    if isinstance(value, str):
        public = without_secrets(value)
        if public == value:
            return value
        return f"{public} ({crc32(re.sub('://[^/?#]*@', '://', value).encode(errors='replace')):08x})"
    if isinstance(value, Mapping):
        return {key: _public(item) for key, item in value.items()}
    return [_public(item) for item in value] if isinstance(value, list) else value


def _file_names(path: Any) -> Any:
    """The name of the file at a path or an address, of each in a list; other values as they are.

    Without the query of a web address, which is another each time that it is signed, and a secret.
    """
    if isinstance(path, list):
        return [_file_names(each) for each in path]
    if not isinstance(path, str):
        return path
    if re.match("https?://", path):  # elsewhere a `?` is a part of a name, or a pattern
        path = urlsplit(path).path
    return PurePath(path).name


def _shown(table: Table, *, is_gathered: bool, borders: Sequence[int]) -> str:
    """`is_gathered`: it lies in the first partition alone, as in jobs that overlap. borders: where the
    partitions end in it, in a pipeline."""
    kind = "sparse" if table.sparse else "dense"
    where = ", in the first partition" if is_gathered else ""
    if borders:
        where = f", cut between layers ({crc32(repr(tuple(borders)).encode()):08x})"
    return f"{table.rows} x {table.columns} {table.dtype}, {kind}, {table.update.value}{where}"


@dataclass(frozen=True)
class Manifest:
    """One whole checkpoint. `parts` in the order of partitions; `at_s` is wall time."""

    name: CutId
    at_s: float
    identity: Identity
    parts: tuple[PartInfo, ...]

    def file(self, partition: int) -> str:
        """The name of a part in the store."""
        return f"{folder_of(self.name)}/{part_file(partition)}"

    def to_text(self) -> str:
        """A JSON object with a checksum of itself; `from_text` reads it back."""
        plain = {
            "format": FORMAT,
            "clock": self.name.clock,
            "epoch": self.name.epoch,
            "at_s": self.at_s,
            "partitions": len(self.parts),
            "parts": [{"file": part_file(part.partition), **asdict(part)} for part in self.parts],
            "identity": asdict(self.identity),
        }
        return json.dumps({**plain, "checksum": _checksum(plain)}, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: bytes, name: CutId) -> Self:
        """Read what `to_text` wrote of the cut `name`. Raises DamagedError, which does not name the file."""
        try:
            plain = json.loads(text.decode())
            if (found := plain["format"]) != FORMAT:
                raise DamagedError(f"has format {found}, this version of proteus reads format {FORMAT}")
            if plain.pop("checksum") != _checksum(plain):
                raise DamagedError("has another checksum than it says")
            parts = tuple(
                PartInfo(part["partition"], part["bytes"], part["sha256"]) for part in plain["parts"]
            )
            identity = Identity.from_plain(plain["identity"])
            manifest = cls(CutId(plain["clock"], plain["epoch"]), plain["at_s"], identity, parts)
            if not 0 <= manifest.at_s < LAST_S:
                raise ValueError(f"it was written at {manifest.at_s}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError("is no manifest of a checkpoint") from error
        if manifest.name != name:
            raise DamagedError(f"is that of {folder_of(manifest.name)}")
        # The number that it says may be any, so no list is made by it.
        if (len(parts), [part.partition for part in parts]) != (plain["partitions"], [*range(len(parts))]):
            raise DamagedError(f"does not list the {plain['partitions']} parts it should have")
        return manifest


def _checksum(plain: Mapping[str, Any]) -> str:
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


# Which state an optimizer keeps, and where partitions of it end. All its other settings say how a step uses that state,
# and may change between steps.
STATE_KEYS = ("optimizer.kind", "optimizer.name", "optimizer.sharded")


def check_identity(
    manifest: Manifest, identity: Identity, *, may_change_optimizer: bool = False
) -> list[str]:
    """One sentence for each difference between a run (`identity`) and a checkpoint's; empty when it may resume.

    may_change_optimizer: the optimizer's rate, schedule and other settings may differ, but not its kind, nor whether
    machines share its state out.
    """
    said = {key: value for key, value in asdict(manifest.identity).items() if value is not None}
    there, here = flat(said), flat({key: value for key, value in asdict(identity).items() if key in said})
    if may_change_optimizer:
        there, here = _without_settings(there), _without_settings(here)
    return [
        f"{key}: found {_value_of(here, key)}, expected {_value_of(there, key)} as in the checkpoint "
        f"{folder_of(manifest.name)}"
        for key in {**there, **here}
        if _plain(there.get(key, ...)) != _plain(here.get(key, ...))
    ]


def _without_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in values.items() if not key.startswith("optimizer.") or key in STATE_KEYS
    }


def _plain(value: Any) -> str:
    """A value such that 1 and 1.0 are the same, 1 and true are not, and a tuple is a list."""
    if value is ...:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _value_of(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else NOT_SET
