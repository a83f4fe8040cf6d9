"""Samples of tar files as WebDataset writes them, by number."""

import copy
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from agileml.application import InputError
from agileml.apps.files.formats.tar import TarDataset


def npy(values: Any) -> bytes:
    to = io.BytesIO()
    np.save(to, np.asarray(values, np.float32))
    return to.getvalue()


def write(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def samples(numbers: range) -> dict[str, bytes]:
    found = {"readme": b"no sample"}
    for n in numbers:
        found |= {
            f"dir.x/{n:03}.x.npy": npy([n, -n]),
            f"dir.x/{n:03}.cls": str(n % 3).encode(),
            f"dir.x/{n:03}.json": json.dumps({"n": n}).encode(),
            f"dir.x/{n:03}.TXT": b"caf\xc3\xa9",
            f"dir.x/{n:03}.raw": bytes([n]),
        }
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "s-0.tar", samples(range(7)))
    write(tmp_path / "s-1.tar", {})
    write(tmp_path / "s-2.tar", samples(range(7, 12)))
    return tmp_path


def test_samples_come_by_number(folder: Path) -> None:
    found = TarDataset(str(folder))
    assert len(found) == 12 and found.read_groups == (7, 5)
    eight, two = found.__getitems__([8, 2])
    assert eight["x.npy"].tolist() == [8, -8] and eight["cls"] == 2 and eight["json"] == {"n": 8}
    assert eight["txt"] == "café" and eight["raw"] == b"\x08" and two["__key__"] == "dir.x/002"
    pairs = TarDataset(str(folder / "s-*.tar"), inputs=["x.npy"], target="cls")
    assert pairs[4][1] == 1 and pairs[4][0].tolist() == [4, -4]
    decoded = TarDataset(str(folder), decode=lambda row: row["raw"][0] * 2)
    assert decoded.__getitems__([11, 0]) == [22, 0]


def test_files_elsewhere_need_an_index_which_knows_them_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    TarDataset(str(folder)).save_index(folder / "index.json")
    assert len(TarDataset(str(folder / "index.json"))) == 12
    system = fsspec.filesystem("memory")
    for file in ("s-0.tar", "s-2.tar", "index.json"):
        system.pipe_file(f"/tars/{file}", (folder / file).read_bytes())
    far = copy.deepcopy(TarDataset("memory://tars/index.json", inputs=["x.npy"], target="cls"))
    assert far.read_groups == (7, 5) and far[9][0].tolist() == [9, -9]
    with pytest.raises(InputError, match=r"s-0\.tar is a tar file without an index, expected the index"):
        TarDataset("memory://tars/*.tar")


def test_files_of_one_name_have_no_index(folder: Path) -> None:
    """Read from it, one of them would come twice, the other never."""
    paths = [folder / "s-0.tar", folder / "more" / "s-0.tar"]
    paths[1].parent.mkdir()
    write(paths[1], samples(range(20, 27)))
    with pytest.raises(
        InputError, match=r"s-0\.tar and .*more/s-0\.tar have one name, expected files that can"
    ):
        TarDataset([str(path) for path in paths]).save_index(folder / "index.json")
    assert not (folder / "index.json").exists()


def index(*shards: dict[str, Any]) -> bytes:
    return json.dumps({"shardlist": shards}).encode()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.tar", b"no tar file at all" * 100, "x.tar is no tar file, or damaged ("),
        ("x.json", b"{}", "x.json is no index of tar files (KeyError: 'shardlist')"),
        ("x.json", index({"url": "s-0.tar"}), "x.json is no index of tar files (KeyError: 'nsamples')"),
        ("x.json", index({"url": "none.tar", "nsamples": 3}), "none.tar does not exist"),
        ("x.json", index({"url": "s-0.tar", "nsamples": 0}), "x.json has no samples"),
    ],
)
def test_files_that_cannot_be_used_are_named(folder: Path, name: str, content: bytes, said: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=r"^data\.path: ") as caught:
        TarDataset(str(folder / name))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_samples_that_cannot_be_read_are_named(folder: Path) -> None:
    (folder / "x.json").write_bytes(index({"url": "s-0.tar", "nsamples": 8}))
    with pytest.raises(InputError, match=r"s-0\.tar has 7 samples, expected the 8 that the index says"):
        TarDataset(str(folder / "x.json"))[0]
    write(folder / "y.tar", {"a.cls": b"seven", "b.npy": npy([1])[:90]})
    data = TarDataset(str(folder / "y.tar"))
    for number, said in ((0, "a.cls is damaged (invalid literal"), (1, "b.npy is damaged (")):
        with pytest.raises(InputError) as caught:
            data[number]
        assert said in str(caught.value)
    with pytest.raises(
        InputError, match=r"^data\.inputs: .* has no jpg in every row, expected some of __key__, x"
    ):
        TarDataset(str(folder / "s-0.tar"), inputs=["jpg"], target="cls").__getitems__([0])
    write(folder / "z.tar", {"a.pyd": b"", "a.npy": npy([1])} | {"b.pickle": pickle.dumps(7)})
    assert TarDataset(str(folder / "z.tar"))[1]["pickle"] == pickle.dumps(7), "never unpickled"
