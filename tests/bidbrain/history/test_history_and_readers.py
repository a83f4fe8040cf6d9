"""Steps of a price, holes, and every format that is read; what is wrong in a file is one sentence."""

import copy
import gzip
import json
import multiprocessing
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bidbrain.history.archive import append_rows, rows_of, write_rows
from bidbrain.history.prices import NEVER_S, Market, Steps, find_holes
from bidbrain.history.readers import HistoryError, open_text, read_history, read_rows
from bidbrain.instants import Interval, parse_instant
from tests.bidbrain.makers import broken_gzip
from tests.thorough import examples

HEADER = "timestamp,instance_type,availability_zone,product,price\n"
ENTRY = {"InstanceType": "m", "AvailabilityZone": "z", "ProductDescription": "L", "SpotPrice": "1"}
ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=30)


def naive_price(rows: list[tuple[int, int]], now: int) -> int | None:
    """The last row of the last second at or before `now`."""
    best = None
    for time, price in sorted(rows, key=lambda row: row[0]):
        if time <= now:
            best = price
    return best


@given(ROWS)
@settings(deadline=None, derandomize=True, max_examples=examples(120))
def test_steps_say_what_the_rows_say(rows: list[tuple[int, int]]) -> None:
    steps = Steps.from_rows([t for t, _ in rows], [p for _, p in rows])
    for now in range(-2, 64):
        assert steps.price_at(now) == naive_price(rows, now)
    first = min(t for t, _ in rows)
    for now in range(first, 62):
        for bid in (0, 3, 9):
            # A price above the bid after the grant.
            later = [t for t in range(now + 1, 64) if (naive_price(rows, t) or 0) > bid]
            changes = [t for t in later if naive_price(rows, t) != naive_price(rows, t - 1)]
            still = (naive_price(rows, now) or 0) > bid
            gone = steps.eviction_s(now, bid)
            if not still:
                assert gone == (later[0] if later else NEVER_S)
            else:
                assert gone >= (changes[0] if changes else NEVER_S)
        assert steps.highest(now, now) == naive_price(rows, now)


@given(ROWS, st.integers(0, 60), st.integers(1, 60))
@settings(deadline=None, derandomize=True, max_examples=examples(200))
def test_seconds_by_step_add_up(rows: list[tuple[int, int]], start: int, length: int) -> None:
    steps = Steps.from_rows([t for t, _ in rows], [p for _, p in rows])
    window = Interval(start, start + length)
    known = sum(1 for t in range(start, start + length) if naive_price(rows, t) is not None)
    assert steps.seconds_by_step(window).sum() == known


def test_holes_are_longer_than_a_day_and_an_hour() -> None:
    times = np.array([0, 90_000, 2 * 90_000 + 1], np.int64)
    assert find_holes(times) == (Interval(90_000, 180_001),)


def test_a_price_that_aws_repeats_once_a_day_leaves_no_hole(tmp_path: Path) -> None:
    """As the GPU types of 2021: every row comes up to a minute later in the day than the one before it."""
    stamps = [f"2021-03-{day:02}T22:{9 + day // 2:02}:{day}Z" for day in range(10, 30)]
    body = "".join(f"{stamp},p3.2xlarge,us-east-1a,Linux/UNIX,0.918\n" for stamp in stamps)
    assert read_history([write(tmp_path / "a.csv", HEADER + body)]).holes == ()


def write(path: Path, text: str) -> Path:
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    if path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_csv_is_read_plain_and_packed(tmp_path: Path, name: str) -> None:
    body = "2016-01-01T00:00:10Z,m,z,Linux/UNIX,0.02\n2016-01-01T00:00:00Z,m,z,Linux/UNIX,0.01\n"
    history = read_history([write(tmp_path / name, HEADER + body)])
    steps = history.steps[Market("m", "z")]
    assert steps.prices.tolist() == [10_000, 20_000]
    assert history.end_s == parse_instant("2016-01-01T00:00:10Z")


def test_spaces_behind_commas_are_no_part_of_a_name(tmp_path: Path) -> None:
    body = "2016-01-01T00:00:00Z, m, z, Linux/UNIX, 0.01\n"
    history = read_history([write(tmp_path / "a.csv", HEADER.replace(",", ", ") + body)])
    assert history.markets == (Market("m", "z"),)


def test_of_several_rows_in_a_second_the_last_counts(tmp_path: Path) -> None:
    body = "".join(f"2016-01-01T00:00:00Z,m,z,Linux/UNIX,0.0{digit}\n" for digit in (3, 1, 2))
    history = read_history([write(tmp_path / "a.csv", HEADER + body)])
    assert history.steps[Market("m", "z")].prices.tolist() == [20_000]


def test_a_folder_is_all_its_files_and_a_gap_between_them_is_a_hole(tmp_path: Path) -> None:
    for day in (1, 9):
        text = "".join(f"2016-01-0{day}T0{h}:00:00Z,m,z,Linux/UNIX,0.01\n" for h in range(5))
        write(tmp_path / f"{day}.csv", HEADER + text)
    history = read_history([tmp_path])
    assert [str(hole) for hole in history.holes] == ["2016-01-01T04:00:00Z/2016-01-09T00:00:00Z"]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.integers(0, 2)), min_size=3, max_size=12)
)
@example([(0, "a", 0), (10, "a", 0), (50, "a", 0), (5, "b", 1), (40, "b", 1)])  # both lack the days 10 to 40
def test_rows_in_several_files_are_the_history_that_they_are_in_one(rows: list[tuple[int, str, int]]) -> None:
    """Holes too: a stretch without any row is one, wherever the holes of the single files begin and end."""
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder, "one.csv")
        written = {(day * 86_400, "m", zone, "L", 1 + day): number for day, zone, number in rows}
        files = {number: Path(folder, f"{number}.csv") for number in written.values()}
        write_rows(one, sorted(written))
        for number, path in files.items():
            write_rows(path, sorted(row for row, own in written.items() if own == number))
        whole, split = read_history([one]), read_history(list(files.values()))
    assert (split.holes, split.end_s, split.gone) == (whole.holes, whole.end_s, whole.gone)
    assert split.markets == whole.markets
    for market, steps in whole.steps.items():
        assert np.array_equal(split.steps[market].times, steps.times)


def test_another_file_fills_a_hole(tmp_path: Path) -> None:
    gap = [f"2016-01-0{d}T00:00:00Z,m,z,Linux/UNIX,0.01\n" for d in (1, 5)]
    fill = [f"2016-01-0{d}T00:00:00Z,n,z,Linux/UNIX,0.01\n" for d in range(1, 6)]
    one = write(tmp_path / "a.csv", HEADER + "".join(gap))
    other = write(tmp_path / "b.csv", HEADER + "".join(fill))
    assert len(read_history([one]).holes) == 1
    assert read_history([one, other]).holes == ()


def test_the_json_of_the_aws_command(tmp_path: Path) -> None:
    entry = {
        "AvailabilityZone": "us-east-1a",
        "InstanceType": "m5.large",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": "0.035300",
        "Timestamp": "2026-01-02T03:04:05+00:00",
    }
    path = write(tmp_path / "h.json.gz", json.dumps({"SpotPriceHistory": [entry]}))
    assert list(read_rows(path)) == [
        (parse_instant("2026-01-02T03:04:05Z"), "m5.large", "us-east-1a", "Linux/UNIX", 35_300)
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"a.csv: empty"),
        ("time,price\n", r"a.csv line 1: not a price history"),
        (HEADER, r"a.csv: no rows"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,L,0.1\n2016-01-01,m,z\n", r"line 3: 3 columns, expected 5"),
        (HEADER + "yesterday,m,z,L,0.1\n", r"line 2: 'yesterday' is not a timestamp"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,L,cheap\n", r"line 2: the price 'cheap' is not a number"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,L,0\n", r"line 2: the price 0 is not positive"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,L,-1\n", r"line 2: the price -1 is not positive"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,L,1e14\n", r"line 2: the price '1e14' is more than"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,L,1e25\n", r"line 2: the price '1e25' is more than"),
        (HEADER + "2016-01-01T00:00:00Z,,z,L,1\n", r"line 2: instance type or zone is empty"),
        (HEADER + "2016-01-01T00:00:00Z,m, ,L,1\n", r"line 2: instance type or zone is empty"),
        (HEADER + "2016-01-01T00:00:00Z,m,z,,1\n", r"line 2: the product is empty .expected one such as"),
    ],
)
def test_bad_csv_is_one_sentence_with_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(HistoryError, match=sentence) as error:
        read_history([write(tmp_path / "a.csv", text)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.json", b"{", "a.json line 1: not JSON"),
        ("a.json", b"[1]", "entry 1: expected an object"),
        ("a.json", json.dumps([{**ENTRY, "Timestamp": 1e30}]).encode(), "entry 1: 1e.30 is not a timestamp"),
        (
            "a.json",
            json.dumps([{**ENTRY, "Timestamp": float("nan")}]).encode(),
            "entry 1: nan is not a timestamp",
        ),
        ("a.json", b'{"x": []}', "'SpotPriceHistory'"),
        ("a.csv", b"\xff\xfe\x00", "not a text file"),
        ("a.csv.gz", b"no gzip", "cannot be read"),
        ("a.csv.zst", b"no zstd", "cannot be read"),
        ("a.csv.gz", broken_gzip(HEADER.encode()), "cannot be read .Error -3"),
        ("a.json", b"[" * 200_000, "a.json: JSON that cannot be used .maximum recursion"),
        ("a.json", b"[" + b"1" * 5000 + b"]", "a.json: JSON that cannot be used .Exceeds the limit"),
        (
            "a.json",
            json.dumps([{**ENTRY, "Timestamp": "0001-01-01T00:00:00+14:00"}]).encode(),
            "entry 1: '0001-01-01T00:00:00.14:00' is not a timestamp",
        ),
    ],
)
def test_files_that_are_no_history(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(HistoryError, match=sentence):
        read_history([path])


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_a_file_that_a_spreadsheet_saved_is_read(tmp_path: Path, name: str) -> None:
    """It begins with a byte-order mark."""
    path = tmp_path / name
    write_rows(path, [(10, "m", "z", "L", 5)])
    with open_text(path) as text:
        marked = ("\ufeff" + text.read()).encode()
    pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
    path.write_bytes(pack(marked))
    assert list(read_rows(path)) == [(10, "m", "z", "L", 5)]


def test_a_zst_file_that_is_cut_off_behind_a_row_is_refused(tmp_path: Path) -> None:
    """Rows that can be unpacked look like a whole history."""
    packer = zstandard.ZstdCompressor().compressobj()
    first = packer.compress((HEADER + "2016-01-01T00:00:00Z,m,z,L,0.1\n").encode())
    first += packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path = tmp_path / "a.csv.zst"
    path.write_bytes(first)
    with pytest.raises(HistoryError, match=r"a.csv.zst: cannot be read .the file ends in the middle"):
        read_history([path])
    path.write_bytes(first + packer.compress(b"2016-01-01T00:00:05Z,m,z,L,0.2\n") + packer.flush())
    assert len(list(read_rows(path))) == 2


def test_packed_files_that_were_joined_are_read_to_the_end(tmp_path: Path) -> None:
    rows = [f"2016-01-0{n}T00:00:00Z,m,z,L,0.1\n" for n in range(1, 6)]
    pack = zstandard.ZstdCompressor().compress
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00size"  # pzstd writes such frames between the others
    path = tmp_path / "a.csv.zst"
    path.write_bytes(skipped.join(pack(part.encode()) for part in (HEADER, *rows)))
    assert len(list(read_rows(path))) == 5


def test_names_of_files_are_as_good_as_paths(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"{HEADER}2016-03-01,m,z,L,1\n2016-03-01T01:00Z,m,z,L,2\n")
    window = read_history([tmp_path / "p.csv"]).window
    for named in (tmp_path / "p.csv", str(tmp_path), [str(tmp_path / "p.csv")]):
        assert read_history(named).window == window
    with pytest.raises(HistoryError, match="no file of prices is named"):
        read_history([])


def test_missing_files_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="File name too long"):
        read_history([tmp_path / ("x" * 300)])
    with pytest.raises(HistoryError, match="no such file"):
        read_history([tmp_path / "none.csv"])
    with pytest.raises(HistoryError, match="without price files"):
        read_history([tmp_path])


def test_an_archive_grows_without_doubles(tmp_path: Path) -> None:
    path = tmp_path / "archive.csv.gz"
    rows = [(10, "m", "z", "L", 5), (5, "m", "z", "L", 4)]
    assert append_rows(path, rows) == (2, 2)
    assert append_rows(path, [*rows, (12, "m", "z", "L", 6)]) == (1, 3)
    assert append_rows(path, rows) == (0, 3)
    assert [row[0] for row in read_rows(path)] == [5, 10, 12]


def test_an_archive_may_be_a_link(tmp_path: Path) -> None:
    """A new file took the place of the link, and the archive on the other disk grew no more."""
    (tmp_path / "large").mkdir()
    link, archive = tmp_path / "archive.csv", tmp_path / "large" / "prices.csv"
    link.symlink_to(archive)
    for at_s in (5, 10):
        append_rows(link, [(at_s, "m", "z", "L", at_s)])
        assert link.is_symlink() and [row[0] for row in read_rows(archive)][-1] == at_s
    assert len(list(read_rows(archive))) == 2


def test_processes_that_add_to_an_archive_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "archive.csv"
    context = multiprocessing.get_context("fork")
    adding = [context.Process(target=_add_rows, args=(path, number)) for number in range(4)]
    for process in adding:
        process.start()
    for process in adding:
        process.join()
    assert [process.exitcode for process in adding] == [0] * 4
    assert len(list(read_rows(path))) == 4 * 25


def _add_rows(path: Path, number: int) -> None:
    for at_s in range(25):
        append_rows(path, [(at_s, "m", f"z{number}", "L", 5)])


def test_a_history_survives_being_written(tmp_path: Path, turbulent) -> None:
    path = tmp_path / "made.csv.zst"
    write_rows(path, rows_of(turbulent))
    again = read_history([path])
    assert again.markets == turbulent.markets
    for market, steps in turbulent.steps.items():
        assert np.array_equal(steps.times, again.steps[market].times)
        assert np.array_equal(steps.prices, again.steps[market].prices)


def test_a_market_travels_to_another_process_without_its_hash() -> None:
    """Hashes of texts differ from process to process; a kept one would hide the market from the other's tables."""
    market = Market("c5.xlarge", "us-east-1a")
    fresh = pickle.dumps(market)
    assert {market: 1}[Market("c5.xlarge", "us-east-1a")] == 1
    assert pickle.dumps(market) == fresh
    assert copy.copy(market) == market


def test_a_pool_that_alone_has_no_rows_for_days_is_named(tmp_path: Path) -> None:
    """As of a region that was not fetched for a while: a price of days before held there without a word."""
    days = {"us-east-1a": range(1, 20), "us-west-2a": (1, 2, 9, 12, 13, 19)}
    rows = [
        f"2016-01-{day:02}T00:00:00Z,c4.xlarge,{zone},Linux/UNIX,0.05"
        for zone, own in days.items()
        for day in own
        if not 13 < day < 19  # a hole of all
    ]
    history = read_history([write(tmp_path / "p.csv", "\n".join([HEADER, *rows]) + "\n")])
    (note,) = history.market_notes
    assert note == (
        "c4.xlarge@us-west-2a has no row from 2016-01-02T00:00:00Z to 2016-01-09T00:00:00Z, 7.0 days, where others "
        "have: its price before is taken to hold"
    )
    assert history.select([Market("c4.xlarge", "us-east-1a")]).market_notes == ()


def test_a_pool_whose_rows_end_before_the_recording_does_is_named(tmp_path: Path) -> None:
    rows = [f"2016-01-0{day}T00:00:00Z,c4.xlarge,us-east-1a,Linux/UNIX,0.05" for day in range(1, 8)]
    rows += [f"2016-01-0{day}T01:00:00Z,c4.xlarge,us-east-1b,Linux/UNIX,0.06" for day in range(1, 3)]
    history = read_history([write(tmp_path / "p.csv", "\n".join([HEADER, *rows]) + "\n")])
    (note,) = history.market_notes
    assert note == (
        "c4.xlarge@us-east-1b has no row after 2016-01-02T01:00:00Z, 5.0 days before the recording ends: "
        "its last price is taken to hold"
    )
    assert history.select([Market("c4.xlarge", "us-east-1a")]).market_notes == ()
    assert history.select(history.markets).market_notes == (note,)
