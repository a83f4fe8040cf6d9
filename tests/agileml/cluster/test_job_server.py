"""The client of a cluster's job server, against one that answers as Ray's does."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from aiohttp import web

from agileml.cluster.errors import ClusterError
from agileml.cluster.job_server import URL_VARIABLE, JobServer, find_server, is_this_computer


async def version(_: web.Request) -> web.Response:
    return web.json_response({"version": "4", "ray_version": ray.__version__, "ray_commit": ""})


async def no_jobs(_: web.Request) -> web.Response:
    return web.json_response([])


async def one_job(_: web.Request) -> web.Response:
    told = {"type": "SUBMISSION", "submission_id": "job", "status": "RUNNING", "entrypoint": ""}
    return web.json_response(told)


async def taken_unheard(request: web.Request) -> web.Response:
    """Takes a job, and loses the connection before it answers."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def endless(request: web.Request) -> web.WebSocketResponse:
    """The output of a job that goes on."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    while not socket.closed:
        await socket.send_str("a line\n")
        await asyncio.sleep(0.01)
    return socket


@contextmanager
def served() -> Iterator[str]:
    """The URL of a job server."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    app = web.Application()
    app.router.add_get("/api/version", version)
    app.router.add_get("/api/jobs/", no_jobs)
    app.router.add_post("/api/jobs/", taken_unheard)
    app.router.add_get("/api/jobs/job", one_job)
    app.router.add_get("/api/jobs/job/logs/tail", endless)
    runner = web.AppRunner(app)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        ready.set()

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (URL_VARIABLE, "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    return monkeypatch


def test_a_proxy_of_the_environment_is_passed_by(environment: pytest.MonkeyPatch) -> None:
    """The cluster was found without it, and then asked through it, token included: nothing listened there."""
    environment.setenv("http_proxy", "http://127.0.0.1:9")
    environment.setenv("NO_PROXY", "example.com")
    with served() as url:
        assert JobServer(find_server(url)).jobs() == []


def test_an_output_that_is_closed_ends_the_following_as_itself(environment: pytest.MonkeyPatch) -> None:
    """`proteus logs -f ID | head` ended with a sentence about the cluster's logs, and exit code 2."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with served() as url, pytest.raises(BrokenPipeError):
        JobServer(find_server(url)).follow("job", say)
    assert len(said) == 1


def test_a_job_whose_answer_is_lost_is_named(environment: pytest.MonkeyPatch) -> None:
    """It runs, perhaps, and its id was nowhere to be seen: submitted again, it ran twice."""
    with served() as url:
        server = JobServer(find_server(url))
        with pytest.raises(ClusterError, match=r"`proteus status mlr-1` tells whether it was taken"):
            server.submit("mlr-1", "exec python", {}, {})


def test_a_file_whose_name_is_no_utf8_is_named(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray said that the folder must be an existing directory or an archive."""
    # It logs the name, and a report of a test with such a text cannot go from one process to another.
    environment.setattr(logging.getLogger("ray._private.runtime_env.packaging"), "disabled", True)
    (tmp_path / os.fsdecode(b"caf\xe9.csv")).touch()
    with served() as url:
        server = JobServer(find_server(url))
        with pytest.raises(ClusterError) as refused:
            server.submit("mlr-1", "exec python", {"working_dir": str(tmp_path)}, {})
    assert str(refused.value) == (
        r"submit: found the file 'caf\udce9.csv' in the folder that is uploaded, expected names in UTF-8"
    )


def test_a_head_that_is_named_is_this_computer() -> None:
    """On the head itself `--address $(hostname):6379` was told to forward the port from another computer."""
    named = [socket.gethostname()]
    try:
        socket.getaddrinfo(named[0], None)
    except OSError:  # a computer that does not know itself
        named = []
    # Debian leads the computer's name to the second of these.
    here = ["127.0.0.1", "127.0.1.1", "::1", "localhost", *named]
    assert [host for host in here if not is_this_computer(host)] == []
    assert not is_this_computer("203.0.113.1")
