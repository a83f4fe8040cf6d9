"""Profiles: files, checks, tables, scaling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.partition.closed_sets import closed_sets, prefixes
from pipeline.profile.layers import Layer, Profile, ProfileError, chain, from_dict, read, to_dict, write

GOOD = {
    "model": "small",
    "batch": 32,
    "layers": [
        {
            "id": "a",
            "name": "A",
            "forward_ms": 1.0,
            "backward_ms": 2.0,
            "activation_bytes": 8,
            "parameter_bytes": 4,
        },
        {
            "id": "b",
            "name": "B",
            "forward_ms": 3.0,
            "backward_ms": 4.0,
            "activation_bytes": 6,
            "parameter_bytes": 0,
        },
    ],
    "edges": [["a", "b"]],
}


def changed(**changes: object) -> dict:
    return json.loads(json.dumps(GOOD)) | changes


def layer(**changes: object) -> dict:
    return changed(layers=[GOOD["layers"][0] | changes, GOOD["layers"][1]])


def test_write_then_read_gives_the_same(tmp_path: Path) -> None:
    profile = from_dict(GOOD)
    assert profile.layers[0].forward_s == 0.001
    assert profile.edges == ((0, 1),)
    write(profile, tmp_path / "p.json")
    assert read(tmp_path / "p.json") == profile
    assert from_dict(to_dict(profile)) == profile
    assert not list(tmp_path.glob("*.part"))


def test_scaling_by_batch_and_speed() -> None:
    profile = from_dict(GOOD)
    double = profile.scaled(batch=64)
    assert double.single_seconds == pytest.approx(2 * profile.single_seconds)
    assert double.layers[0].activation_bytes == 16
    assert double.parameter_bytes == profile.parameter_bytes
    assert profile.scaled(speed=4.0).single_seconds == pytest.approx(profile.single_seconds / 4)


def test_the_table_names_every_layer_and_the_sums() -> None:
    text = from_dict(GOOD).table()
    assert "sum of 2 layers" in text
    assert "4.000" in text
    assert "... 1 more" in from_dict(GOOD).table(limit=1)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], '"layers"'),
        (changed(edges=None), '"edges" is missing'),
        (changed(edges=[["a", "c"]]), '"c"'),
        (changed(edges=[[0, 7]]), "layer 7"),
        (changed(edges=[[0]]), r"\[from, to\]"),
        (changed(edges=[[0, 1], [1, 0]]), "cycle through layers"),
        (changed(batch=0), "batch must be 1 or more"),
        (changed(batch="x"), '"batch" must be a whole number'),
        (layer(forward_ms=-1.0), "forward_s must be 0 or more"),
        (layer(activation_bytes="big"), "activation_bytes must be a number"),
        (layer(backward_ms=float("nan")), "backward_s must be 0 or more"),
        (changed(layers=[], edges=[]), "no layers"),
        (changed(tied=5), '"tied" must be a list'),
        (changed(tied=[0]), '"tied" must be a list'),
        (changed(tied=[[0, 99]]), "name layer 99"),
        (changed(inputs_removed=[5]), '"inputs_removed" must be a list of layers'),
        (changed(inputs_removed=[{"activation_bytes": "x"}]), "must be a number"),
        (changed(input_bytes=float("inf")), "input_bytes must be 0 or more"),
        (layer(forward_ms=10**400), "forward_ms must be a number below"),
        (changed(layers=[GOOD["layers"][0] | {"id": "a"}] * 2, edges=[["a", "a"]]), 'have the same id "a"'),
        (changed(layers=[{"name": "x"}], edges=[]), 'layer 0 lacks the key "forward_ms"'),
        (
            changed(layers=[GOOD["layers"][0] | {"forward_ms": 0, "backward_ms": 0}], edges=[]),
            "nothing to balance",
        ),
    ],
)
def test_bad_profiles_are_one_sentence(raw: object, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        from_dict(raw)
    assert "\n" not in str(caught.value)


def test_shared_weights_of_no_layer_are_named() -> None:
    with pytest.raises(ProfileError, match="tied names layer 4, but the layers are 0 to 3"):
        replace(diamond(), tied=((0, 4),))


def test_bad_files_name_the_file(tmp_path: Path) -> None:
    for name, text in (("a.json", None), ("b.json", "{"), ("c.json", "[]"), ("deep.json", "[" * 100_000)):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ProfileError, match=name):
            read(tmp_path / name)
    with pytest.raises(ProfileError, match=r"b.json.below.json cannot be read \(Not a directory\)"):
        read(tmp_path / "b.json" / "below.json")
    with pytest.raises(ProfileError, match="is a folder"):
        read(tmp_path)


def test_scaling_needs_to_know_the_batch() -> None:
    with pytest.raises(ProfileError, match="which batch"):
        chain([1.0], [1.0], [1.0]).scaled(batch=2)
    with pytest.raises(ProfileError, match="batch must be 1 or more, found 0"):
        from_dict(GOOD).scaled(batch=0)


def diamond() -> Profile:
    layers = tuple(Layer(f"l{i}", 1.0, 1.0, float(10 * (i + 1)), 1.0) for i in range(4))
    return Profile("diamond", layers, ((0, 1), (0, 2), (1, 3), (2, 3)))


def test_closed_sets_of_a_diamond() -> None:
    sets = closed_sets(diamond(), 100)
    assert sorted(sets.masks) == [0, 0b1, 0b11, 0b101, 0b111, 0b1111]
    assert not sets.is_chain
    # Behind {0, 1} the outputs of 0 (for 2) and of 1 (for 3) cross; 0's only once where two take it.
    cuts = dict(zip(sets.masks, sets.cut_bytes, strict=True))
    assert cuts[0b1] == 10
    assert cuts[0b11] == 10 + 20
    assert cuts[0b111] == 20 + 30
    assert cuts[0b1111] == 0
    assert prefixes(diamond()).is_chain


def test_layers_that_cost_nothing_are_no_choice() -> None:
    free = Layer("index", 0.0, 0.0, 0.0, 0.0)
    profile = diamond()
    layers = (*profile.layers, free, free)
    sets = closed_sets(Profile("d", layers, (*profile.edges, (4, 3), (2, 5))), 100)
    assert len(sets) == 6


def test_too_many_closed_sets_fall_back_to_prefixes() -> None:
    wide = Profile("wide", tuple(Layer(f"l{i}", 1.0, 1.0, 1.0, 1.0) for i in range(12)), ())
    sets = closed_sets(wide, 1_000)
    assert not sets.is_all
    assert len(sets) == 13


def test_the_recorded_profiles_have_the_released_tools_cuts() -> None:
    """Where the released tool's states are a chain, its sums are ours."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "data" / "profiles"
    if not folder.exists():
        pytest.skip("the recorded profiles are not on this machine")
    for name in ("vgg16", "alexnet"):
        raw = json.loads((folder / f"{name}.json").read_text())
        sets = closed_sets(read(folder / f"{name}.json"), 1_000)
        assert sets.is_chain
        theirs = [state["cum_compute_s"] for state in raw["states"]]
        assert list(sets.compute_s[1:]) == pytest.approx(theirs)
        assert list(sets.parameter_bytes[1:]) == pytest.approx(
            [s["cum_parameter_bytes"] for s in raw["states"]]
        )


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    profile = chain([1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    write(profile, tmp_path / "plain.json")
    (tmp_path / "marked.json").write_text((tmp_path / "plain.json").read_text(), "utf-8-sig")
    assert read(tmp_path / "marked.json") == read(tmp_path / "plain.json")
