r"""Ends a machine whose head has been silent for too long. It runs beside every machine that costs money.

    python -m agileml.cluster.watchdog --shutdown --after 300 \
        --tls-head 10.0.0.5:6379 --authority authority.pem --head 10.0.0.5:6378

The watchdog asks every address that it was given, and counts silence from the moment that one of them does not answer:
the GCS of the head node, and the liveness endpoint of the process that drives the market (`LivenessEndpoint`). Both
answer the first bytes of an HTTP/2 connection, so a frozen process is silent too, and the watchdog needs no token. A
GCS with TLS answers by showing a certificate of the cluster's authority: a foreign host at its address is silence.

The watchdog shuts an EC2 instance down, which terminates it. It kills a local Ray node with all of its processes, which
it recognises by a mark in their environment. It ends itself when its machine is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from agileml.cluster.orphan import Silence
from agileml.cluster.processes import kill

MARK = "PROTEUS_MACHINE"  # in the environment of every process of a local machine
# Without this variable Ray's workers and agents overwrite their environment with their names.
KEEP_ENVIRONMENT = "SPT_NOENV"
LIVENESS_PORT = 6378
# The preface of HTTP/2 and an empty SETTINGS frame; a gRPC server answers with its own SETTINGS.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SHUTDOWN = ("shutdown", "-h", "now")
AGAIN_S = 0.1  # after a connection that could not be taken


class LivenessEndpoint:
    """Answers every watchdog that connects, while this process lives; a context manager. `port` 0: any free one.

    A fixed port also serves as a lock, which no crash leaves behind. Raises OSError when another process has it.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = socket.create_server((host, port), reuse_port=False)
        self._host = host
        self._is_closing = False
        self._thread = threading.Thread(target=self._answer, name="liveness", daemon=True)

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self._host}:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):  # wakes the thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._thread.is_alive():
            self._thread.join()

    def _answer(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                if self._is_closing:
                    return
                # No more files may be open just now, but it must answer all the same later on.
                time.sleep(AGAIN_S)
                continue
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"proteus\n")


@dataclass(frozen=True)
class WatchedHead:
    """An address, host:port, that must answer.

    authority: a PEM file with the authority that its certificate must be of; None: it talks without TLS.
    """

    address: str
    authority: Path | None = None

    def speaks(self, timeout_s: float) -> bool:
        """True when the process there answers; an accepted connection is not enough."""
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        try:
            with socket.create_connection((host, int(port)), timeout=timeout_s) as peer:
                peer.settimeout(timeout_s)
                if self.authority is not None:
                    return _shows_certificate(peer, host, self.authority)
                peer.sendall(HELLO)
                return bool(peer.recv(1))
        except OSError:
            return False


def _shows_certificate(peer: socket.socket, host: str, authority: Path) -> bool:
    """Raises OSError: there is no TLS, or the certificate is not of this authority or not for this host.

    The watchdog shows no certificate of its own: with TLS 1.3 its part of the handshake is over before it is missed.
    """
    context = ssl.create_default_context(cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(peer, server_hostname=host):
        return True


def watch(
    heads: tuple[WatchedHead, ...], after_s: float, end: Callable[[], None], is_there: Callable[[], bool]
) -> None:
    """Ask all heads until the machine is gone; once one was silent for `after_s`, call `end()` until it is gone."""
    silence = Silence(after_s)
    while is_there():
        began_s = time.monotonic()
        answered = all(head.speaks(silence.period_s / len(heads)) for head in heads)
        silence = silence.asked(time.monotonic(), answered)
        if silence.is_orphaned:
            print(f"the head was silent for {silence.silent_s:.1f} s: this machine ends", flush=True)
            end()
        time.sleep(max(0.0, silence.period_s - (time.monotonic() - began_s)))


def processes_marked(mark: str, variable: str = MARK) -> list[psutil.Process]:
    """Every process that carries a mark, such as those of a local Ray node; without this one."""
    return [process for process in psutil.process_iter() if _is_marked(process, variable, mark)]


def _is_marked(process: psutil.Process, variable: str, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.pid != os.getpid() and process.environ().get(variable) == mark
    return False


def marked(mark: str, variable: str = MARK) -> dict[str, str]:
    """Environment variables for the first process of a local Ray node; all its processes inherit the mark."""
    return {variable: mark, KEEP_ENVIRONMENT: "1"}


class LocalMachine:
    """A node of `LocalCluster`: its raylet, and every process that carries its mark."""

    def __init__(self, mark: str, raylet_pid: int) -> None:
        self._mark = mark
        self._raylet: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._raylet = psutil.Process(raylet_pid)

    def is_there(self) -> bool:
        """Workers outlive their raylet, so this looks at all processes once the raylet is gone."""
        if self._raylet is not None and self._raylet.is_running():
            with contextlib.suppress(psutil.NoSuchProcess):
                if self._raylet.status() != psutil.STATUS_ZOMBIE:
                    return True
        return bool(processes_marked(self._mark))

    def end(self) -> None:
        kill(processes_marked(self._mark))


def shut_down() -> None:
    """Shut down the machine that this runs on; the caller repeats it until it works."""
    done = subprocess.run(SHUTDOWN, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{' '.join(SHUTDOWN)} answers {done.returncode}: {done.stderr.strip()}", flush=True)


def start(mark: str, raylet_pid: int, heads: tuple[str, ...], after_s: float, log: Path) -> None:
    """Start the watchdog of a local Ray node as a process that outlives this one and its Ctrl-C."""
    command = [sys.executable, "-m", "agileml.cluster.watchdog", f"--after={after_s}", f"--machine={mark}"]
    command += [f"--raylet={raylet_pid}", *(f"--head={head}" for head in heads)]
    with log.open("ab") as output:
        subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )


def main(arguments: list[str] | None = None) -> None:
    """The command line of a watchdog."""
    parser = argparse.ArgumentParser(description="End this machine when its head has been silent.")
    parser.add_argument("--head", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--tls-head", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument(
        "--authority", type=Path, metavar="PEM", help="of the certificates of every --tls-head"
    )
    parser.add_argument("--after", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--shutdown", action="store_true", help="shut this machine down")
    parser.add_argument("--machine", metavar="MARK", help="kill the processes with this mark")
    parser.add_argument("--raylet", type=int, metavar="PID")
    options = parser.parse_args(arguments)
    if options.shutdown == (options.machine is not None) or (options.machine and options.raylet is None):
        parser.error("expected --shutdown, or --machine with --raylet")
    if not (options.head or options.tls_head) or bool(options.tls_head) != (options.authority is not None):
        parser.error("expected --head, or --tls-head with --authority")
    heads = (
        *map(WatchedHead, options.head),
        *(WatchedHead(each, options.authority) for each in options.tls_head),
    )
    if options.shutdown:
        watch(heads, options.after, shut_down, lambda: True)
    else:
        machine = LocalMachine(options.machine, options.raylet)
        watch(heads, options.after, machine.end, machine.is_there)


if __name__ == "__main__":
    main()
