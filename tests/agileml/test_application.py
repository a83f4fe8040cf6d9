"""What an application gets from the engine."""

import time
from collections.abc import Mapping
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import agileml
from agileml.application import (
    Application,
    Array,
    InputError,
    Settings,
    Table,
    Unit,
    Update,
    Updates,
    without_secrets,
)


@pytest.mark.parametrize("seed", [0, 7, 2**62])
def test_every_key_has_random_numbers_of_its_own(seed: int) -> None:
    settings = Settings(seed=seed)
    keys = [key for length in range(5) for key in product((0, 1, 3), repeat=length)]
    drawn = [settings.rng(*key).bytes(16) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert drawn == [settings.rng(*key).bytes(16) for key in keys]


class Counts(Application):
    """Counts the items of each unit; how many there are follows from the data section."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings)
        self.name = name

    @cached_property
    def items(self) -> int:
        return int(self.settings.data.get("items", 0))

    def tables(self) -> list[Table]:
        return [Table("counts", 1, 1, update=Update.STEP)]

    def load(self, slice_index: int) -> int:
        return self.items

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Array]) -> Updates:
        start, stop = unit.range_of(items, self.settings.clocks_per_pass)
        count = (stop - start) * self.settings.model["times"]
        return Updates({"counts": np.full((1, 1), count, np.float32)}, examples=stop - start)


def test_an_instance_of_the_users_gets_the_settings_of_the_job(tmp_path: Path) -> None:
    settings = Settings(model={"times": 3}, slices=2)
    mine = Counts(settings, "mine")
    assert mine.items == 0  # looked at before the run
    values = {"application": "any:Counts", "data": {"items": 40}, "clocks": 10, "clocks_per_pass": 10}
    result = agileml.run(values, mine, sequential=True, out=str(tmp_path / "run"), slices=8)
    assert result.parameters["counts"].item() == 8 * 40 * 3
    assert isinstance(result.application, Counts) and result.application.name == "mine"
    assert mine.settings == settings and mine.items == 0


class Bare(Counts):
    """Its constructor leaves out that of its base."""

    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:word@host/a.tar?X-Amz-Signature=abc", "https://...@host/a.tar?..."),
        ("simplecache::HTTPS://host/a?sig=abc", "simplecache::HTTPS://host/a?..."),
        ("sftp://me:word@host/a?.tar", "sftp://...@host/a?.tar"),
        ("ftp://:word@host:21/a", "ftp://...@host:21/a"),
        ("postgresql+psycopg2://me:word@host/runs", "postgresql+psycopg2://...@host/runs"),
        ("abfs://images@account.dfs.core.windows.net/a", "abfs://images@account.dfs.core.windows.net/a"),
        ("s3://bucket/a?/*.tar", "s3://bucket/a?/*.tar"),
        ("ftp://me:wo@rd@host/a", "ftp://...@host/a"),
        ("zip://a.npz::https://me:word@host/a.zip?sig=abc", "zip://a.npz::https://...@host/a.zip?..."),
        ("zip://a::s3://bucket/a?.zip", "zip://a::s3://bucket/a?.zip"),
        ("http://me:word@[::1]:80/a?sig=abc", "http://...@[::1]:80/a?..."),
        ("https://host/it's.npz?sig=abc", "https://host/it's.npz?..."),
        ('https://host/a?as=file;name="a.npz"&sig=abc', "https://host/a?..."),
        ("'https://host/a?sig=abc', 'b?'", "'https://host/a?...', 'b?'"),
        (
            "Max retries exceeded with url: /a/b?sig=abc (Caused by ...)",
            "Max retries exceeded with url: /a/b?... (Caused by ...)",
        ),
    ],
)
def test_an_error_shows_no_secret_of_an_address(address: str, shown: str) -> None:
    """fsspec takes passwords in the addresses of ftp, sftp, smb and others, too; those were printed."""
    assert str(InputError(f"data.path: {address} does not exist")) == f"data.path: {shown} does not exist"


def test_a_long_text_is_searched_for_addresses_in_no_time() -> None:
    """A failing batch may be printed whole; a pattern that tries again from each letter would take minutes."""
    began_s = time.process_time()
    assert without_secrets("a" * 300_000) == "a" * 300_000
    assert time.process_time() - began_s < 5.0


def test_an_instance_without_settings_gets_those_of_the_job() -> None:
    settings = Settings(data={"items": 3}, slices=4)
    assert Bare().with_settings(settings).settings == settings
