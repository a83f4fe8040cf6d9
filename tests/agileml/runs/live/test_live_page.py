"""The live page: its view from events, its server behind a token, and what a browser shows of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.cli import main
from agileml.cluster.errors import ClusterError
from agileml.config.job import from_values
from agileml.events.market import Billed, InstancesBought, MarketOpened, PricesChanged
from agileml.events.observed import Evaluated
from agileml.events.run import (
    ClockDone,
    MachineLost,
    MachineNoticed,
    MachinesJoined,
    RunFinished,
    RunRestarted,
    RunStarted,
    RunStopped,
    Work,
    WorkDone,
)
from agileml.events.schema import events_of
from agileml.events.sums import Standing
from agileml.events.terms import Cause, Loss, Tier, Trigger
from agileml.runs.event_log import EVENTS, EventLog, read_events
from agileml.runs.folder import CONFIG, SUMMARY, RunFolder
from agileml.runs.live.server import LONGEST_S, MOST_BUSY, PageServer, pause_s
from agileml.runs.live.sources import GrowingLog, RunPage, of_job
from agileml.runs.owner import this_process
from agileml.runs.progress import Snapshot, line
from agileml.runs.report.page import ReportError, build_report, page, rebuild
from agileml.runs.report.view import PageView
from agileml.runs.summary import summarize
from tests.agileml.events.samples import changed
from tests.agileml.runs.live.browser import CHROMIUM, answer, tab
from tests.agileml.runs.report.test_view import view_of


def started() -> RunStarted:
    return RunStarted("demo", {}, 0.0, this_process())


@pytest.mark.parametrize("every", [7, 150])  # clocks between two looks, of which a file holds about 30
def test_a_growing_log_is_read_once_also_over_several_files(tmp_path: Path, every: int) -> None:
    log = EventLog(tmp_path / EVENTS, segment_bytes=3000)
    log.write(started())
    growing = GrowingLog(tmp_path / EVENTS)
    found = list(growing.events())
    for clock in range(1, 200):
        log.write(ClockDone(clock, 0.5, 4, 0.1), t_s=clock / 10)
        if clock % every == 0:
            found += growing.events()
    log.close()
    found += growing.events()
    assert [e.event.clock for e in found if isinstance(e.event, ClockDone)] == list(range(1, 200))


def test_half_a_line_of_a_killed_process_is_not_read_into_the_line_that_takes_its_place(
    tmp_path: Path,
) -> None:
    log = EventLog(tmp_path / EVENTS)
    log.write(started())
    growing = GrowingLog(tmp_path / EVENTS)
    assert len(list(growing.events())) == 1
    with (tmp_path / EVENTS).open("ab") as killed_while_writing:
        killed_while_writing.write('{"t_s": 3.0, "kind": "said", "\u00e9'.encode()[:-1])  # half a letter, too
    assert list(growing.events()) == []
    log.close()
    again = EventLog(tmp_path / EVENTS, continue_at_s=4.0)
    for clock in (1, 2):
        again.write(ClockDone(clock, 0.5, 4, 0.1))
    again.close()
    assert [event.clock for event in events_of(list(growing.events()), ClockDone)] == [1, 2]


def test_a_run_that_goes_on_after_its_end_is_running_again(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS)
    log.write(started())
    page_ = RunPage(tmp_path)
    log.write(RunStopped(8))
    config = from_values({"application": "lda", "clocks": 9})
    summary = summarize([], config, params_sha256="", metrics={}, split={}, versions={})
    (tmp_path / SUMMARY).write_text(json.dumps(summary))
    shown = page_.look()
    assert shown["state"] == "stopped" and shown["tiles"]
    log.write(RunRestarted("killed", 8, 0, 1, this_process()))
    shown = page_.look()
    assert shown["state"] == "running" and not shown["tiles"]
    log.write(RunFinished(4.0))
    assert page_.look()["state"] == "done"
    log.close()


def test_a_run_that_replaces_another_has_a_page_of_its_own(tmp_path: Path) -> None:
    """As with --overwrite, while the page of the run before is open."""
    out, views = tmp_path / "run", list[dict[str, Any]]()
    page_ = RunPage(out)
    for count in (3, 1):
        folder = RunFolder.create(out, "job", overwrite=True)
        folder.events.write(started())
        folder.write_config(f"clocks: {count}\n")
        for clock in range(1, count + 1):
            folder.events.write(ClockDone(clock, 0.5, 4, 0.1))
        views.append(page_.look())
        folder.events.write(RunFinished(4.0))
        folder.events.close()
        assert page_.look()["state"] == "done"
    assert [(len(view["loss"]), view["state"], view["config"]) for view in views] == [
        (3, "running", "clocks: 3\n"),
        (1, "running", "clocks: 1\n"),
    ]
    assert views[1]["version"] > views[0]["version"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (CONFIG, "plan: [", "config.yaml: line 1 is not valid YAML"),
        (CONFIG, "plan: 3", "TypeError"),
        (SUMMARY, '{"clocks": 3}', "KeyError('longest_gap_s')"),
        (SUMMARY, "[1]", "TypeError"),
    ],
)
def test_a_damaged_config_or_summary_is_told_on_the_page_and_in_a_sentence(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    log = EventLog(tmp_path / EVENTS)
    for event in (started(), ClockDone(1, 0.5, 4, 0.1), RunFinished(4.0)):
        log.write(event)
    log.close()
    (tmp_path / CONFIG).write_text("clocks: 1")
    (tmp_path / name).write_text(text)
    shown = RunPage(tmp_path).look()
    assert problem in shown["news"][0][2] and shown["state"] == "done" and len(shown["loss"]) == 1
    with pytest.raises(ReportError, match=r"^.* holds a damaged log, summary or config: "):
        rebuild(tmp_path)


def test_a_cluster_that_does_not_answer_for_a_while_is_told_on_the_page_and_asked_again() -> None:
    answers = iter(["RUNNING", ClusterError("no dashboard answers"), "SUCCEEDED"])

    def state() -> str:
        found = next(answers)
        if isinstance(found, ClusterError):
            raise found
        return found

    look = of_job("job-1", lambda: "", state)
    assert look()["state"] == "running"
    assert look()["news"][0][2] == "the job cannot be read: no dashboard answers"
    assert look()["state"] == "done"


def test_a_loss_that_is_no_number_does_not_stop_the_page_of_a_job() -> None:
    said = [line(Snapshot(clock, 100, loss, 2, 1, 3), 2.0) for clock, loss in ((1, math.nan), (2, -math.inf))]
    look = of_job("job-1", lambda: "\n".join([*said, ""]), lambda: "RUNNING")
    assert page(look()) and look()["now"]["loss"] is None and look()["now"]["clock"] == 2


@given(st.sets(st.integers(0, 200)))
def test_a_line_that_a_job_is_just_printing_is_shown_whole(looks: set[int]) -> None:
    told = [line(Snapshot(clock, 100, 0.5, 2, 1, 3), 2.0) for clock in (10, 20)]
    output = "\n".join([told[0], "proteus: the checkpoint of clock 9 failed", told[1], "proteus: it goes on"])
    printed, state = "", "RUNNING"
    look = of_job("job-1", lambda: printed, lambda: state)
    for size in sorted(looks):
        printed = output[:size]
        look()
    printed, state = output, "SUCCEEDED"
    shown = look()
    assert [text for _, _, text, _ in shown["news"]] == ["it goes on", "the checkpoint of clock 9 failed"]
    assert [point[1] for point in shown["loss"]] == [0.5, 0.5] and shown["now"]["clock"] == 20


@given(st.floats(0.01, 5.0), st.floats(0.0, 60.0))
def test_looks_that_take_long_are_few(every_s: float, took_s: float) -> None:
    wait_s = pause_s(every_s, took_s)
    assert every_s <= wait_s <= max(every_s, LONGEST_S)
    assert took_s / (took_s + wait_s) <= MOST_BUSY + 1e-9 or wait_s == LONGEST_S
    assert wait_s == every_s or took_s * 9 >= every_s


def test_the_server_ends_with_the_error_of_a_view_that_cannot_be_made() -> None:
    views = iter([PageView("run").as_json()])

    def look() -> dict[str, Any]:
        if (found := next(views, None)) is None:
            raise KeyError("a mistake of ours")
        return found

    with PageServer(look, every_s=0.0) as served, pytest.raises(KeyError, match="a mistake of ours"):
        served.wait()


def test_a_job_of_a_cluster_is_shown_from_its_output() -> None:
    said = [line(Snapshot(clock, 100, 0.5, 2, 1, 3, "", 0.25), 2.0) for clock in (10, 20)]
    output = "\n".join([*said, "proteus: the checkpoint of clock 9 failed: no space", ""])
    states = iter(["RUNNING", "SUCCEEDED"])
    look = of_job("job-1", lambda: output, lambda: next(states))
    shown = look()
    assert (shown["now"]["clock"], shown["clocks_per_s"], shown["state"]) == (20, 2.0, "running")
    assert shown["projected_usd"] == pytest.approx(0.25 * 90 / 10)  # its first line is of clock 10
    assert [point[1] for point in shown["loss"]] == [0.5, 0.5]
    assert shown["news"][0][2] == "the checkpoint of clock 9 failed: no space"
    assert look()["state"] == "done"


def answer_to_path(served: PageServer, path: str) -> int:
    """The status of a request whose path is sent as it is."""
    netloc = urlsplit(served.url).netloc
    connection = http.client.HTTPConnection(netloc, timeout=10)
    connection.putrequest("GET", path, skip_host=True)  # which the client would take from the path
    connection.putheader("Host", netloc)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_who_knows_the_token_gets_in() -> None:
    with PageServer(PageView("run").as_json) as served:
        root = served.url.partition("?")[0]
        assert answer(served.url) == (200, "text/html; charset=utf-8")
        assert answer(served.url.replace("/?", "/events?")) == (200, "text/event-stream")
        assert answer(root)[0] == answer(f"{root}events")[0] == 403
        assert answer(f"{root}?token=x{served.token[1:]}x")[0] == 403
        assert answer(f"{root}?token=%C3%A9")[0] == 403
        assert answer(served.url, host="evil.example:80")[0] == 403
        assert answer(served.url.replace("/?", "/etc/passwd?"))[0] == 404
        assert answer_to_path(served, "http://[") == 403
        assert answer_to_path(served, f"http://[?token={served.token}") == 404


def test_a_token_of_any_signs_gets_in_by_the_address_that_is_printed() -> None:
    """Such as one of `openssl rand -base64 24`, with `+`, `/` and `=`."""
    with PageServer(PageView("run").as_json, token="ab+cd/ef&gh%41#ij==") as served:
        assert answer(served.url)[0] == 200


def test_a_frozen_page_is_one_file_and_mistakes_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path / EVENTS)
    log.write(started())
    log.write(MachinesJoined({"</script><b>": Tier.RELIABLE}))
    log.close()
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path), "--freeze", str(tmp_path / "page.html")])
    assert not ended.value.code
    text = (tmp_path / "page.html").read_text()
    assert text.count("</script>") == 1
    assert "connect-src 'none'" in text and "http" not in text.replace("http-equiv", "")
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path / "page.html").replace("page.html", "")[:-1] + "/none"])
    assert ended.value.code == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path / "empty")])
    assert ended.value.code == 2
    assert "holds no run, expected a folder with events.jsonl" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: apt-get install chromium")
def test_a_browser_sees_a_machine_come_and_go_and_the_bill_grow(tmp_path: Path) -> None:
    asyncio.run(_watched(tmp_path))


async def _watched(folder: Path) -> None:
    log = EventLog(folder / EVENTS)
    log.write(started())

    def stand(clock: int, transient: int, usd: float) -> None:
        log.write(Standing(clock, 100, 1 / clock, 2, 1, transient, "", usd))
        log.write(Billed(clock, usd, 8))

    log.write(MarketOpened(0, 3600.0, "proteus", {}, 2.0))
    log.write(MachinesJoined({"m0": Tier.RELIABLE}))
    for clock in range(1, 40):
        log.write(ClockDone(clock, 1 / clock, 64, 0.1), t_s=clock / 10)
    stand(39, 0, 1.0)
    with PageServer(RunPage(folder).look, every_s=0.05) as served:
        async with tab(folder / "profile") as page_:
            await page_.go(served.url)
            rows = "document.querySelector('#machines').textContent"
            tiles = "document.querySelector('#tiles').textContent"
            await page_.until(f"{rows}.includes('m0') && {tiles}.includes('$1.00')")
            log.write(MachinesJoined({"m1": Tier.TRANSIENT}))
            await page_.until(f"{rows}.includes('m1')")
            log.write(WorkDone(1, 39, 9, {"m0": Work(48, 2.0, 0.1), "m1": Work(16, 1.0, 0.4)}))
            log.write(
                PricesChanged(0, {"c4.xlarge in us-east-1a": 0.0391, "c4.2xlarge in us-east-1a": 0.0811})
            )
            bought = ("i-1",), (1,), 0.0391, 0.21
            log.write(InstancesBought(0, "c4.xlarge in us-east-1a", *bought, reliable=False))
            await page_.until(f"{rows}.includes('25.0 %')")
            market = "document.querySelector('#market').textContent"
            await page_.until(f"{market}.includes('$0.0391') && {market}.includes('$0.2100')")
            log.write(MachineNoticed("m1", 120.0))
            await page_.until("document.querySelector('#news').textContent.includes('m1 will go')")
            log.write(MachineLost("m1", Loss.EVICTED, ""))
            stand(40, 0, 1.5)
            await page_.until(f"{rows}.includes('evicted') && {tiles}.includes('$1.50')")
            for width in (390, 820, 1280):
                await page_.picture(folder / f"page-{width}.png", width)
                wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                await page_.until(f"{wide} <= 0")  # it is not wider than the window
            log.write(MachinesJoined({f"n{number}": Tier.TRANSIENT for number in range(500)}))
            await page_.until("document.querySelector('#lanes-now').textContent.includes('501')")
            frame_ms = float(await page_.ask("document.body.dataset.frameMs"))
            print(f"500 machines: {frame_ms} ms a frame")
            log.write(RunFinished(4.0))
            log.close()
            await page_.until("document.querySelector('#state').textContent === 'done'")
            report = folder / "report.html"
            report.write_text(build_report("clocks: 100\n", read_events(folder / EVENTS), {}))
            await page_.go(report.as_uri())
            await page_.until(f"location.protocol === 'file:' && {rows}.includes('evicted')")
            await page_.until("document.querySelector('#config').textContent === 'clocks: 100\\n'")
            assert page_.errors == []
            here = ("http://127.0.0.1:", report.as_uri())
            assert [url for url in page_.requested if not url.startswith(here)] == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: apt-get install chromium")
def test_a_browser_shows_a_late_first_loss_and_a_run_that_has_not_said_how_it_stands(tmp_path: Path) -> None:
    asyncio.run(_frozen(tmp_path))


async def _frozen(folder: Path) -> None:
    trigger = Trigger(Cause.START)
    view = view_of(
        (0.0, changed(1, trigger)),
        (9.0, changed(2, trigger, stage=2)),
        *((30.0 + clock, ClockDone(clock, 1 / clock, 8, 1.0)) for clock in range(1, 20)),
        (60.0, Evaluated(19, {"b": 0.5, "2": 0.25})),
        (61.0, Evaluated(20, {"b": 0.75, "2": 0.5})),
    )
    (folder / "page.html").write_text(page(view.as_json()))
    async with tab(folder / "profile") as page_:
        await page_.go((folder / "page.html").as_uri())
        tiles = "document.querySelector('#tiles').textContent"
        await page_.until(f"{tiles}.includes('0 / ?') && {tiles}.includes('-left')")
        # The first stage was over before the first loss: its band would lie on the figures of the axis.
        pixel = "getContext('2d').getImageData(3, 60, 1, 1).data[3]"
        assert await page_.ask(f"document.getElementById('loss').{pixel}") == 0
        titles = "[...document.querySelectorAll('canvas')].map(each => each.id + '=' + each.ariaLabel).join()"
        assert "metric b=b" in await page_.ask(titles)
        assert page_.errors == []
