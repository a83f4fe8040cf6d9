"""The files of a run: whole or not there, and a digest that anyone can compute again."""

import hashlib
import json
import math
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from agileml.application import InputError
from agileml.events.run import (
    CheckpointSaved,
    ClockDone,
    CutCommitted,
    MachinesJoined,
    RunStarted,
    Warned,
)
from agileml.events.schema import Logged, events_of
from agileml.events.terms import Tier
from agileml.runs.event_log import EVENTS, EventLog, read_events
from agileml.runs.folder import FolderError, RunFolder, StorageError, check_out, plain
from agileml.runs.model_file import params_sha256
from agileml.runs.owner import this_process
from tests.agileml.runs.full_disk import files_of_at_most
from tests.agileml.runs.model_file import model_sha256
from tests.thorough import examples


def test_the_digest_follows_its_recipe() -> None:
    tables = {"users": np.arange(6, dtype=np.float32).reshape(3, 2), "items": np.ones((1, 2), np.float64)}
    expected = hashlib.sha256()
    expected.update(b"items\0float64\x001,2\0" + np.ones(2, "<f8").tobytes())
    expected.update(b"users\0float32\x003,2\0" + np.arange(6, dtype="<f4").tobytes())
    assert params_sha256(tables) == expected.hexdigest()


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from(["float32", "float64", "int64"]),
    st.integers(0, 2**32 - 1),
)
def test_the_digest_sees_values_and_not_how_they_lie_in_memory(
    shape: list[int], dtype: str, seed: int
) -> None:
    table = np.random.default_rng(seed).integers(-9, 9, shape).astype(dtype)
    digest = params_sha256({"t": table})
    assert params_sha256({"t": np.asfortranarray(table)}) == digest
    assert params_sha256({"t": table.astype(table.dtype.newbyteorder(">"))}) == digest
    assert params_sha256({"u": table}) != digest
    assert params_sha256({"t": table.reshape(-1, 1, 1, 1)}) != digest
    table.flat[0] += 1
    assert params_sha256({"t": table}) != digest


def test_a_folder_holds_what_was_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "mf")
    folder.write_config("application: mf\n")
    tables = {"users": np.arange(8, dtype=np.float32).reshape(2, 4).T, "items": np.zeros((2, 2))}
    digest = folder.write_model(tables)
    folder.write_summary({"loss": np.float32(0.5), "metrics": {"rmse": float("nan")}, "stages": (1, 2)})
    folder.write_report("<html></html>")
    folder.events.write(ClockDone(1, float("inf"), 24, None))
    folder.events.close()
    assert digest == model_sha256(folder.path / "model.safetensors")
    assert np.array_equal(load_file(folder.path / "model.safetensors")["users"], tables["users"])
    assert json.loads((folder.path / "summary.json").read_text()) == {
        "loss": 0.5,
        "metrics": {"rmse": None},
        "stages": [1, 2],
    }
    [done] = events_of(read_events(folder.path / "events.jsonl"), ClockDone)
    assert done.clock == 1 and math.isnan(done.loss)
    assert '"loss": null' in (folder.path / "events.jsonl").read_text()
    assert sorted(os.listdir(folder.path)) == [
        "config.yaml", "events.jsonl", "model.safetensors", "report.html", "summary.json",
    ]  # fmt: skip


def test_a_config_with_a_secret_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first byte on."""
    folder, seen = RunFolder.create(tmp_path / "run", "a"), list[int]()
    written = Path.write_text

    def watched(path: Path, *text: str, **how: str) -> int:
        seen.append(path.stat().st_mode & 0o777)
        return written(path, *text, **how)

    monkeypatch.setattr(Path, "write_text", watched)
    folder.write_config("data: {path: a.npz}\n")
    usual = (folder.path / "events.jsonl").stat().st_mode & 0o777
    assert (folder.path / "config.yaml").stat().st_mode & 0o777 == usual
    folder.write_config("data: {path: 'https://host/a.npz?sig=abc'}\n")
    assert (folder.path / "config.yaml").stat().st_mode & 0o777 == 0o600
    assert seen == [usual, 0o600]


def test_a_model_may_hold_arrays_and_tensors_in_any_form(tmp_path: Path) -> None:
    """Of an application's own: a transposed view, two names for one memory, a number without axes."""
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = torch.from_numpy(weights.copy()).requires_grad_()
    folder = RunFolder.create(tmp_path / "run", "own")
    folder.write_model(
        {"weights": weights}, {"w": tensor.T, "tied": tensor, "a": weights.T, "scale": np.array(2.0)}
    )
    found = load_file(folder.path / "model.safetensors")
    assert np.array_equal(found["w"], weights.T) and np.array_equal(found["a"], weights.T)
    assert np.array_equal(found["tied"], weights) and found["scale"].shape == ()
    with pytest.raises(InputError, match=r"as_model\(\): found 'epochs' of type int, expected NumPy arrays"):
        folder.write_model({"weights": weights}, {"w": tensor, "epochs": 3})


def test_default_folders_of_one_second_differ(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    names = [RunFolder.create(None, "demo", runs=runs).path.name for _ in range(4)]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"demo-\d{8}-\d{6}(-\d)?", name) for name in names)


def test_a_folder_of_another_run_or_a_file_is_refused(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run", "mf")
    first.events.close()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("/nowhere/disk")  # not mounted
    (tmp_path / "bought" / "market").mkdir(parents=True)  # a journal that a service would go on with
    for out, sentence in [
        (tmp_path / "bought", r"out: .*/bought holds another run \(found market\), expected a new"),
        (tmp_path / "run", r"out: .*/run holds another run \(found events.jsonl\), expected"),
        (tmp_path / "file", "out: .*/file is a file, expected"),
        (tmp_path / "link", "out: .*/link is a link to /nowhere/disk, which is not there"),
        (tmp_path / "link" / "below", "out: .*/link is a link to /nowhere/disk, which"),
        (tmp_path / "file" / "below", "out: .*/below cannot be made, .*/file is a file"),
    ]:
        with pytest.raises(FolderError, match=sentence):
            check_out(out)
        with pytest.raises(FolderError, match=sentence):
            RunFolder.create(out, "mf")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("x")
    check_out(tmp_path / "empty")
    check_out(tmp_path / "new" / "deeper")
    assert not (tmp_path / "new").exists()


def test_a_run_without_a_result_may_be_replaced_and_one_with_a_result_not(tmp_path: Path) -> None:
    """As after a mistake in one's own code: the same command again."""
    folder = RunFolder.create(tmp_path / "run", "job")
    folder.write_config("clocks: 1")
    folder.events.write(RunStarted("job", {}, 0.0, this_process()))
    with pytest.raises(FolderError, match="holds another run"):
        check_out(tmp_path / "run")  # it goes on
    folder.events.close()
    ended = replace(this_process(), created_s=1.0)
    (tmp_path / "run" / "events.jsonl").unlink()
    log = EventLog(tmp_path / "run" / "events.jsonl")
    log.write(RunStarted("job", {}, 0.0, ended))
    log.close()
    check_out(tmp_path / "run")
    (tmp_path / "run" / "summary.json").touch()
    with pytest.raises(FolderError, match="holds another run"):
        check_out(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "events.jsonl").unlink()
    elsewhere = EventLog(tmp_path / "run" / "events.jsonl")
    elsewhere.write(RunStarted("job", {}, 0.0, replace(ended, host="another")))
    elsewhere.close()
    with pytest.raises(FolderError, match="holds another run"):
        check_out(tmp_path / "run")


def test_a_folder_that_is_not_writable_is_refused() -> None:
    # /proc refuses root as well.
    for attempt in (check_out, lambda out: RunFolder.create(out, "mf")):
        with pytest.raises(
            FolderError, match=r"out: /proc/run is not writable \(.+\), expected a folder that is"
        ):
            attempt("/proc/run")


def test_events_of_many_threads_are_whole_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    threads = [
        threading.Thread(target=lambda who=who: [log.write(CutCommitted(n, who)) for n in range(200)])
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    cuts = events_of(read_events(tmp_path / "events.jsonl"), CutCommitted)
    assert {(cut.travel_s, cut.clock) for cut in cuts} == {(who, n) for who in range(4) for n in range(200)}


def test_events_carry_their_own_time_and_are_read_in_its_order(tmp_path: Path) -> None:
    now = [5.0]
    log = EventLog(tmp_path / "events.jsonl", clock_s=lambda: now[0])
    now[0] = 6.5
    log.write(MachinesJoined({"a": Tier.RELIABLE}))
    log.write(CheckpointSaved(1), t_s=0.25)
    log.close()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"t_s": 9, "kind": "clo')  # the process was killed here
    assert read_events(tmp_path / "events.jsonl") == [
        Logged(0.25, CheckpointSaved(1)),
        Logged(1.5, MachinesJoined({"a": Tier.RELIABLE})),
    ]


FULL = """
import resource, sys, json
from pathlib import Path
import numpy as np
from agileml.runs.folder import RunFolder, StorageError
from agileml.events.run import CheckpointSaved, RunFinished

folder = RunFolder.create(sys.argv[1], "mf")
folder.write_summary({"loss": 1})
folder.events.write(CheckpointSaved(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
said = []
for write in (
    lambda: folder.write_model({"t": np.zeros((1000, 10))}),
    lambda: folder.write_summary({"loss": "x" * 10_000}),
    lambda: folder.write_report("x" * 10_000),
):
    try:
        write()
    except StorageError as error:
        said.append(str(error))
told = []
folder.events.on_line_lost = told.append
for clock in range(2, 200):
    folder.events.write(CheckpointSaved(clock))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
folder.events.write(RunFinished(1.0))
print(json.dumps({"said": said, "told": told, "lost": folder.events.lost}))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_disk_that_takes_no_more_leaves_earlier_files_whole(tmp_path: Path) -> None:
    # A limit on the size of files stands in for a full disk: the same writes fail, and no root is needed.
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    assert [re.match(r".*/run/(\S+) could not be written: .*MiB free\); what was", s)[1] for s in result["said"]] == [
        "model.safetensors", "summary.json", "report.html",
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path / "run")) == ["events.jsonl", "summary.json"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"loss": 1}
    kept = read_events(tmp_path / "run" / "events.jsonl")
    clocks = [saved.clock for saved in events_of(kept, CheckpointSaved)]
    assert clocks[:60] == list(range(1, 61))
    assert clocks == sorted(set(clocks))  # a shorter line may fit where a longer one did not
    assert result["lost"] == 199 - len(clocks) > 0
    (told,) = result["told"]
    # Where the limit is the end of a line, the system's own error; times have more digits or fewer.
    assert re.search(r"lines do not fit and are left out \((No space left on device|File too large)\)", told)
    assert [each.event.kind for each in kept[len(clocks) :]] == ["warning", "finished"]
    (warned,) = events_of(kept, Warned)
    assert warned.reason.startswith(f"{result['lost']} lines of events.jsonl did not fit")
    assert (tmp_path / "run" / "events.jsonl").read_text().endswith("\n")


def test_plain_values() -> None:
    assert plain({1: np.int64(2), "s": {3, 1}, "a": np.array([1.0, np.nan]), "p": Path("x")}) == {
        "1": 2, "s": [1, 3], "a": [1.0, None], "p": "x",
    }  # fmt: skip


def test_the_recipe_in_the_quick_start_gives_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "quickstart.md").read_text()
    recipe = re.search(r"```python\n(import hashlib.*?)```", page, re.DOTALL)[1]
    folder = RunFolder.create(tmp_path / "run", "mf")
    digest = folder.write_model({"users": np.eye(3, dtype=np.float32), "items": np.arange(4.0).reshape(2, 2)})
    monkeypatch.chdir(folder.path)
    exec(recipe, {})
    assert capsys.readouterr().out.strip() == digest


ROTATING = """
import json, resource, sys
from pathlib import Path
from agileml.events.run import CheckpointSaved
from agileml.runs.event_log import EVENTS, EventLog, read_events

path, most = Path(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)
log = EventLog(path)
for clock in range(1, 51):
    log.write(CheckpointSaved(clock))
log.close()
log = EventLog(path, segment_bytes=1000, continue_at_s=1.0)  # the next line begins a new file
resource.setrlimit(resource.RLIMIT_FSIZE, (20, most[1]))
log.write(CheckpointSaved(51))
resource.setrlimit(resource.RLIMIT_FSIZE, most)
for clock in range(52, 201):
    log.write(CheckpointSaved(clock))
log.close()
print(json.dumps({"lost": log.lost, "kept": [each.event.clock for each in read_events(path)]}))
"""


def test_a_disk_that_is_full_when_a_file_of_the_log_ends_costs_no_more_than_lines(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", ROTATING, str(file)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found == {"lost": 1, "kept": [clock for clock in range(1, 201) if clock != 51]}
    assert len(list(tmp_path.glob("events-*.jsonl.gz"))) > 1  # it goes on in new files


@contextmanager
def read_only(file: Path) -> Iterator[None]:
    """What this process has open of a file can be read alone, as once an error of its disk has made that read-only."""
    (held,) = [each for each in map(int, os.listdir("/proc/self/fd")) if leads_to(each, file)]
    before, reader = os.dup(held), os.open(file, os.O_RDONLY)
    os.dup2(reader, held)
    yield
    os.dup2(before, held)
    os.close(before)
    os.close(reader)


def leads_to(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False


def test_a_disk_that_becomes_read_only_costs_lines_and_not_the_run(tmp_path: Path) -> None:
    log, said = EventLog(tmp_path / EVENTS), list[str]()
    log.on_line_lost = said.append
    log.write(CheckpointSaved(1))
    with read_only(tmp_path / EVENTS):
        log.write(CheckpointSaved(2))
        log.write(CheckpointSaved(3))
    log.write(CheckpointSaved(4))
    log.close()
    assert log.lost == 2 and len(said) == 1 and "left out (Bad file descriptor)" in said[0]
    assert [each.event for each in read_events(tmp_path / EVENTS)] == [CheckpointSaved(1), CheckpointSaved(4)]


def test_a_log_on_a_full_disk_is_not_begun(tmp_path: Path) -> None:
    with files_of_at_most(10), pytest.raises(FolderError, match=r"events.jsonl cannot be written: "):
        RunFolder.create(tmp_path / "run", "mf")
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.parametrize(("place", "why"), [("file/page.html", "Not a directory"), ("n" * 255, "too long")])
def test_a_place_that_cannot_be_is_one_sentence(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=f"could not be written: .*{why}"):
        RunFolder.write_text(tmp_path / place, "page")


def test_an_optimizer_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "mf")
    state = {"state": torch.zeros(10_000)}
    told = r"optimizer.pt could not be written: File too large .*free\); what was"
    with files_of_at_most(4096), pytest.raises(StorageError, match=told):
        folder.write_optimizer(state)
    assert os.listdir(tmp_path / "run") == ["events.jsonl"]


def test_a_report_of_a_folder_from_elsewhere_writes_no_other_file(tmp_path: Path) -> None:
    """A link at the name of the temporary file led to a file of the user's, which became the report."""
    own, run = tmp_path / ".bashrc", tmp_path / "run"
    own.write_text("the user's own")
    run.mkdir()
    (run / f".report.html.{os.getpid()}.tmp").symlink_to(own)
    RunFolder.write_text(run / "report.html", "<html>")
    assert own.read_text() == "the user's own"
    assert (run / "report.html").read_text() == "<html>"
    assert [(each.name, each.is_symlink()) for each in run.iterdir()] == [("report.html", False)]
