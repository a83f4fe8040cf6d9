"""Ray's job server: finds it behind any kind of address, submits jobs and asks about them.

`ray.job_submission` tries for minutes before it gives up, and prefers an address from the environment to its argument.
So this module checks the server and the token first, within 3 s, and then gives Ray the URL of the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import psutil

from agileml.cluster import dashboard
from agileml.cluster.errors import ClusterError
from agileml.cluster.ray_cluster import REACH_TIMEOUT_S, answering, check_alive, gcs_client, locate, meant

OURS = "proteus"  # key in the metadata of our jobs; its value is the version that submitted the job
CONFIG = "config"  # key in the metadata with the name of the config
WATCH = (
    "live page"  # key in the metadata with the command that serves it: Ray's dashboard shows it at the job
)
OVER = ("STOPPED", "SUCCEEDED", "FAILED")
# Seconds between Ray's request to stop and its SIGKILL; a run ends by itself long before.
STOP_WAIT_S = 900
URL_VARIABLE = "RAY_API_SERVER_ADDRESS"


@dataclass(frozen=True)
class SubmittedJob:
    """One of our jobs. `state`: PENDING, RUNNING, or one of `OVER`. Times are Unix seconds."""

    id: str
    state: str
    message: str
    started_s: float | None
    ended_s: float | None
    exit_code: int | None

    @property
    def is_over(self) -> bool:
        """True when its driver has ended."""
        return self.state in OVER


def find_server(address: str, timeout_s: float = REACH_TIMEOUT_S) -> str:
    """The URL of the job server of a cluster: host:port of its GCS, its dashboard's http address, or auto.

    Raises ClusterError within `timeout_s`: nothing listens, something else does, a missing or wrong token, the cluster
    has no job server, or only its head can reach it.
    """
    if dashboard.is_http(address := meant(address)):
        _check_server(address, timeout_s)
        return address.rstrip("/")
    host, port = locate(address)
    check_alive(host, port, timeout_s / 2)
    url = _url_known_to(host, port)
    if url is None:
        raise ClusterError(
            f"address: the cluster at {host}:{port} takes no jobs, expected a head that was started with "
            "--include-dashboard=true"
        )
    name = url.removeprefix("http://").rpartition(":")[0]
    if name in ("127.0.0.1", "localhost", "[::1]") and not is_this_computer(host):
        port_there = url.rpartition(":")[2]
        raise ClusterError(
            f"address: the job server of {host} listens on its loopback only; forward it with "
            f"`ssh -L {port_there}:127.0.0.1:{port_there} {host}` and give --address http://127.0.0.1:{port_there}"
        )
    _check_server(url, timeout_s / 2)
    return url


def _check_server(url: str, timeout_s: float) -> None:
    import ray

    answer = dashboard.ask(url, "/api/version", timeout_s)
    version = answer.get("ray_version") if isinstance(answer, dict) else None
    if version is None:
        raise ClusterError(f"address: what answers at {url} is no Ray dashboard")
    if version != ray.__version__:
        raise ClusterError(
            f"address: the cluster at {url} runs Ray {version}, expected {ray.__version__} as here"
        )


def _url_known_to(host: str, port: int) -> str | None:
    """The URL of the dashboard that the GCS knows."""
    from ray._private import ray_constants

    with answering(f"{host}:{port}"):
        found = gcs_client(f"{host}:{port}").internal_kv_get(
            ray_constants.DASHBOARD_ADDRESS.encode(),
            namespace=ray_constants.KV_NAMESPACE_DASHBOARD,
            timeout=1.0,
        )
    return f"http://{found.decode()}" if found else None


def is_this_computer(host: str) -> bool:
    """True for an address of this computer, and for a name that leads to one."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:  # not known here
        return False
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    return any(address in own or ip_address(address).is_loopback for address in found)


class JobServer:
    """The jobs of one cluster. Every method raises ClusterError with the server's answer as one sentence."""

    def __init__(self, url: str) -> None:
        """`url` as `find_server` returns it."""
        from ray.job_submission import JobSubmissionClient

        for name in ("dashboard_sdk", "job.sdk"):  # they log every step
            logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
        os.environ[URL_VARIABLE] = url  # Ray takes this, or RAY_ADDRESS, before its argument
        _pass_proxies_by(url)
        self.url = url
        self._client = _in_one_sentence(lambda: JobSubmissionClient(url), f"address: {url}")

    def submit(
        self, job: str, entrypoint: str, runtime_env: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> None:
        """Upload the files that `runtime_env` names and start the job; returns once the server accepted it."""
        import requests

        try:
            _in_one_sentence(
                lambda: self._client.submit_job(
                    submission_id=job,
                    entrypoint=entrypoint,
                    runtime_env=dict(runtime_env),
                    metadata=dict(metadata),
                ),
                "submit",
            )
        except ClusterError as error:
            cause = error.__cause__
            # Of a name that is no UTF-8 Ray says that the folder must be one.
            for each in (cause, cause and cause.__context__):
                if isinstance(each, UnicodeEncodeError):
                    raise ClusterError(
                        f"submit: found the file {each.object!a} in the folder that is uploaded, expected names "
                        "in UTF-8"
                    ) from None
            if isinstance(cause, requests.RequestException):  # perhaps the answer alone was lost
                raise ClusterError(f"{error}; `proteus status {job}` tells whether it was taken") from None
            raise

    def jobs(self) -> list[SubmittedJob]:
        """Our jobs, the oldest first."""
        details = _in_one_sentence(self._client.list_jobs, "status")
        ours = [_job(each) for each in details if each.submission_id and OURS in (each.metadata or {})]
        return sorted(ours, key=lambda job: job.started_s or 0.0)

    def job(self, name: str) -> SubmittedJob:
        """One of our jobs. Raises ClusterError also when there is none of that name."""
        for job in self.jobs():
            if job.id == name:
                return job
        known = ", ".join(job.id for job in self.jobs()[-3:]) or "none"
        raise ClusterError(
            f"found no job {name} at {self.url}, expected one of its jobs (the newest: {known})"
        )

    def log(self, name: str) -> str:
        """The output of the job so far."""
        return str(_in_one_sentence(lambda: self._client.get_job_logs(name), f"logs of {name}"))

    def follow(self, name: str, say: Callable[[str], None]) -> None:
        """Call `say` with the output of the job, from its start on, until it ends. Raises OSError as `say` does."""
        unsaid: list[OSError] = []

        async def tail() -> None:
            async for text in self._client.tail_job_logs(name):
                try:
                    say(text)
                except OSError as error:  # of a pipe or a disk here, not of the cluster
                    unsaid.append(error)
                    return

        _in_one_sentence(lambda: asyncio.run(tail()), f"logs of {name}")
        if unsaid:
            raise unsaid[0]

    def stop(self, name: str) -> None:
        """Ask the job to end; returns at once."""
        _in_one_sentence(lambda: self._client.stop_job(name), f"stop {name}")


def _pass_proxies_by(url: str) -> None:
    """Have Ray's client talk to the cluster itself, as our own questions do: a proxy that the environment names would
    get the token, and knows no way to a forwarded port."""
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    os.environ["no_proxy"] = ",".join(filter(None, [named, urlsplit(url).hostname]))


def _job(details: Any) -> SubmittedJob:
    started, ended = (at_ms / 1000 if at_ms else None for at_ms in (details.start_time, details.end_time))
    state = getattr(details.status, "value", str(details.status))
    return SubmittedJob(
        details.submission_id, state, details.message or "", started, ended, details.driver_exit_code
    )


def _in_one_sentence(ask: Callable[[], Any], what: str) -> Any:
    """Call Ray's client; turn every error that it raises into a ClusterError of one sentence."""
    import aiohttp
    import ray
    import requests

    try:
        return ask()
    except (
        RuntimeError, ValueError, OSError,
        ray.exceptions.RayError, aiohttp.ClientError, requests.RequestException,
    ) as error:  # fmt: skip
        said = " ".join(str(error).split()) or type(error).__name__
        raise ClusterError(f"{what}: {said[:400]}") from error
