"""A resume must agree with the checkpoint: every difference is a sentence."""

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from agileml.application import Table, Update
from agileml.checkpoints.checkpoint import CheckpointStore, Manifest, find, newest
from agileml.checkpoints.manifest import Identity, check_identity
from agileml.config.job import from_values
from agileml.core.protocol.view import CutId
from tests.agileml.checkpoints.rig import (
    CONFIG,
    IDENTITY,
    TABLES,
    write,
)

NAME = CutId(7, 3)


def other(**changes: Any) -> Identity:
    return Identity.of(from_values({**CONFIG, **changes}), TABLES)


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"seed": 3}, ["seed: found 3, expected 0"]),
        ({"model": {"rank": 9}}, ["model.rank: found 9, expected 8"]),
        ({"model": {}}, ["model.rank: found nothing, expected 8"]),
        ({"model": {"rank": 8, "bias": True}}, ["model.bias: found true, expected nothing"]),
        ({"data": {"path": "other.csv", "format": "csv"}}, ['data.path: found "other.csv", expected "ratings.csv"']),
        ({"data": {"path": "elsewhere/ratings.csv", "format": "csv"}}, []),
        ({"application": "mlr"}, ['application: found "mlr", expected "mf"']),
        ({"optimizer": {"kind": "momentum", "momentum": 0.5}}, ["optimizer.momentum: found 0.5, expected 0.9"]),
        ({"slices": 16}, ["slices: found 16, expected 8"]),
        ({"units_per_slice": 2}, ["units_per_slice: found 2, expected 1"]),
        ({"partitions": 4}, ["partitions: found 4, expected 8"]),
        ({"clocks_per_pass": 8}, ["clocks_per_pass: found 8, expected 64"]),
        ({"deterministic": False}, ["deterministic: found false, expected true"]),
        ({"machines": {"transient": 1}, "stage": 2, "clocks": 900, "active_fraction": 1.0, "out": "x"}, []),
        ({"plan": [{"at_clock": 2, "join": 1, "tier": "transient"}], "cuts": {"every_s": 9.0}}, []),
    ],
)  # fmt: skip
def test_a_resume_must_agree_with_the_checkpoint(changes: dict[str, Any], sentences: list[str]) -> None:
    manifest = Manifest(NAME, 0.0, IDENTITY, ())
    assert check_identity(manifest, other(**changes)) == [
        f"{sentence} as in the checkpoint clock-7-3" for sentence in sentences
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (["/a/one.parquet", "/a/two.parquet"], ["/b/one.parquet", "s3://c/two.parquet"], True),
        (["/a/one.parquet", "/a/two.parquet"], ["/a/two.parquet", "/a/one.parquet"], False),
        ("https://host/a/one.csv?signature=one", "https://host/b/one.csv?signature=two", True),
        ("https://host/one.csv", "https://host/two.csv", False),
        ("s3://bucket/part?.csv", "s3://bucket/part?.tsv", False),
    ],
)
def test_files_may_lie_elsewhere_and_addresses_be_signed_anew(before: Any, after: Any, is_same: bool) -> None:
    for key in ("path", "test"):
        there, here = other(data={key: before}), other(data={key: after})
        assert (check_identity(Manifest(NAME, 0.0, there, ()), here) == []) is is_same
        assert "signature" not in Manifest(NAME, 0.0, there, ()).to_text()


def test_no_address_of_an_application_s_own_key_leaves_its_secrets_in_a_checkpoint() -> None:
    def of(query: str, password: str = "word") -> Identity:
        place = f"https://me:{password}@host/a?{query}"
        job = {**CONFIG, "application": "any:Mine", "data": {"source": place}, "model": {"all": [place]}}
        return Identity.of(from_values(job), TABLES)

    manifest = Manifest(NAME, 0.0, of("set=1"), ())
    text = manifest.to_text()
    assert "word" not in text and "set=1" not in text and "https://...@host/a?..." in text
    assert not check_identity(manifest, of("set=1", "another"))
    assert len(check_identity(manifest, of("set=2"))) == 2, "it may be other data"
    before = asdict(of("set=1")) | {"data": {"source": "https://me:word@host/a?set=1"}}
    assert Identity.from_plain(before).data == of("set=1").data, "of an earlier version"


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"kind": "momentum", "momentum": 0.5, "learning_rate": 0.3}, []),
        ({"kind": "momentum", "clip_norm": 1.0, "schedule": {"kind": "cosine", "clocks": 9}}, []),
        ({"kind": "sgd"}, ['optimizer.kind: found "sgd", expected "momentum"']),
    ],
)
def test_a_resume_may_be_told_to_change_the_optimizer_but_not_its_kind(
    changes: dict[str, Any], sentences: list[str]
) -> None:
    before = Identity.of(from_values({**CONFIG, "optimizer": {"kind": "momentum"}}), TABLES)
    manifest, found = Manifest(NAME, 0.0, before, ()), other(optimizer=changes)
    assert check_identity(manifest, found, may_change_optimizer=True) == [
        f"{sentence} as in the checkpoint clock-7-3" for sentence in sentences
    ]
    assert check_identity(manifest, found)
    assert check_identity(manifest, replace(found, seed=1), may_change_optimizer=True)


def test_a_resume_may_not_change_whether_machines_share_the_state_of_the_optimizer_out() -> None:
    """Partitions end elsewhere where they do, so the parts of a checkpoint would not fit."""
    job = {**CONFIG, "application": "torch", "model": {}, "exchange": "allreduce", "partitions": 4}
    alike, shared = (
        Identity.of(
            from_values({**job, "optimizer": {"kind": "torch", "name": "AdamW", "sharded": sharded}}), TABLES
        )
        for sharded in (False, True)
    )
    for there, here, found, expected in (
        (alike, shared, "true", "nothing"),
        (shared, alike, "nothing", "true"),
    ):
        assert check_identity(Manifest(NAME, 0.0, there, ()), here, may_change_optimizer=True) == [
            f"optimizer.sharded: found {found}, expected {expected} as in the checkpoint clock-7-3"
        ]


def test_where_tables_lie_is_part_of_it() -> None:
    tables = (Table("parameters", 1, 500), Table("buffers", 1, 40, update=Update.STEP))
    config = {**CONFIG, "application": "torch", "model": {}, "partitions": 4}
    before = Manifest(NAME, 0.0, Identity.of(from_values(config), tables), ())
    assert check_identity(before, Identity.of(from_values({**config, "overlap": "auto"}), tables)) == [
        'tables.buffers: found "1 x 40 float32, dense, step, in the first partition", expected "1 x 40 float32, dense, '
        'step" as in the checkpoint clock-7-3'
    ]


def test_a_resume_with_other_tables_versions_or_code_is_told() -> None:
    manifest = Manifest(NAME, 0.0, IDENTITY, ())
    wider = Identity.of(from_values(CONFIG), (replace(TABLES[0], columns=5), TABLES[1]))
    assert check_identity(manifest, wider) == [
        'tables.users: found "60 x 5 float32, sparse, gradient", expected "60 x 4 float32, sparse, gradient" '
        "as in the checkpoint clock-7-3"
    ]
    [told] = check_identity(manifest, replace(IDENTITY, version="9.9"))
    assert told.startswith('version: found "9.9", expected "')
    assert len(check_identity(manifest, replace(IDENTITY, seed=1, deterministic=False))) == 2


def test_a_checkpoint_is_found_by_its_name(store: CheckpointStore) -> None:
    manifest = write(store, NAME)
    assert find(store, NAME) == manifest and find(store, CutId(7, 4)) is None


def test_an_identity_survives_its_manifest(store: CheckpointStore) -> None:
    write(store, NAME)
    found = newest(store, pytest.fail)
    assert found is not None and check_identity(found, IDENTITY) == []


@pytest.mark.parametrize("change", ["one key more", "one key less"])
def test_a_checkpoint_of_another_version_is_whole_and_named_as_such(
    store: CheckpointStore, change: str
) -> None:
    """Its manifest may say other things than those of this version."""
    text = write(store, NAME).to_text()
    plain = json.loads(text)
    del plain["checksum"]
    plain["identity"]["version"] = "0.0"
    if change == "one key more":
        plain["identity"]["flavour"] = "sweet"
    else:
        del plain["identity"]["units_per_slice"]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    text = json.dumps({**plain, "checksum": hashlib.sha256(canonical.encode()).hexdigest()})
    store.put("clock-7-3/manifest.json", [text.encode()], len(text))
    found = newest(store, pytest.fail)
    assert found is not None and found.name == NAME
    (told,) = check_identity(found, IDENTITY)
    assert told.startswith(f'version: found "{IDENTITY.version}", expected "0.0"')
