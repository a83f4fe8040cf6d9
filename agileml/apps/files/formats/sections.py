"""The section `data` of a torch job whose items are in files that are read item by item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from agileml.apps.files.cache import DEFAULT_GIB
from agileml.apps.files.formats.dataset import SHUFFLE_ITEMS
from agileml.apps.files.formats.hugging_face import HuggingFaceDataset, opened
from agileml.apps.files.formats.parquet import DEFAULT_MIB, ParquetDataset
from agileml.apps.files.formats.tar import TarDataset
from agileml.config.section import Positive, Section, validate

Paths = str | list[str]


class _Files(Section):
    path: Paths
    test: Paths | None = None
    inputs: list[str] = Field(default_factory=list)
    target: str | None = None
    decode: str | None = None
    shuffle_items: Annotated[int, Field(ge=1)] = SHUFFLE_ITEMS
    cache_gib: Positive = DEFAULT_GIB

    def of_dataset(self) -> dict[str, Any]:
        """The arguments of the data sets."""
        return self.model_dump(exclude={"kind", "path", "test"})


class ParquetFiles(_Files):
    """Parquet files: a path, a folder, a pattern, an address, or a list of them; `test` likewise."""

    kind: Literal["parquet"] = "parquet"
    columns: list[str] | None = None
    memory_mib: Positive = DEFAULT_MIB


class TarFiles(_Files):
    """Tar files as WebDataset writes them, or an index of them."""

    kind: Literal["tar"] = "tar"


class HuggingFaceSet(Section):
    """A data set that Hugging Face's library `datasets` loads, by its name or from a folder."""

    kind: Literal["huggingface"] = "huggingface"
    path: str
    name: str | None = None
    split: str = "train"
    test_split: str | None = None
    inputs: list[str] = Field(default_factory=list)
    target: str | None = None


KINDS: dict[str, type[Section]] = {"parquet": ParquetFiles, "tar": TarFiles, "huggingface": HuggingFaceSet}
PINNED = {"parquet", "tar"}  # kinds whose list of files travels to the machines


def items_in_files(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """(train, test or None) of a section whose kind is one of KINDS. Raises InputError, ConfigError."""
    section = validate(KINDS[data["kind"]], data, ("data",))
    if isinstance(section, HuggingFaceSet):
        train, test = opened(section.path, section.name, section.split, section.test_split)
        form = section.inputs, section.target
        return HuggingFaceDataset(train, *form), None if test is None else HuggingFaceDataset(test, *form)
    kind = ParquetDataset if isinstance(section, ParquetFiles) else TarDataset
    assert isinstance(section, _Files)
    test = None if section.test is None else kind(section.test, **section.of_dataset())
    return kind(section.path, **section.of_dataset()), test
