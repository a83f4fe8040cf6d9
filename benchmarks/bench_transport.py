"""Push and pull of one array between two processes of one machine: our transport, a plain socket, a Ray actor.

A round sends an array to the other process and gets one of the same size back, as a worker does in every clock. Best of
several rounds. The plain blocking socket, which reads into a buffer that it keeps,
is the limit of one thread per end.
`python benchmarks/bench_transport.py [--quick] [--no-ray]`; for trials: --io-threads, --frame-kib, --default-malloc.
"""

import argparse
import base64
import os
import pickle
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from agileml.net import wire
from agileml.net.events import MessageReceived
from agileml.net.keys import KeyPair
from agileml.net.transport import Transport

SIZES_MB = (0.01, 1.0, 10.0, 100.0)
# What the engine's processes run with: big blocks are kept by malloc instead of being faulted in anew each time.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_MAX_": "0"}

Round = Callable[[np.ndarray], Any]


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"io_threads": arguments.io_threads, "frame_bytes": arguments.frame_kib << 10}


def answer_of(size: int, made: dict[int, np.ndarray]) -> np.ndarray:
    """The array that is pulled; made once per size, as a shard's parameters are."""
    if size not in made:
        made[size] = np.ones(size, np.uint8)
    return made[size]


def serve_transport(arguments: argparse.Namespace) -> None:
    node_ip, folder, halves, parent = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301  our parent
    keys = None if halves is None else KeyPair(*halves)
    made: dict[int, np.ndarray] = {}
    with Transport(
        "b", node_ip=node_ip, ipc_folder=folder, keys=keys, curve=keys is not None, **options_of(arguments)
    ) as transport:
        transport.connect(parent)
        print(base64.b64encode(pickle.dumps(transport.address)).decode(), flush=True)
        while True:
            for event in transport.receive(None):
                if isinstance(event, MessageReceived):
                    if event.header == b"quit":
                        return
                    transport.send("a", b"", [answer_of(event.arrays[0].nbytes, made)])


@contextmanager
def transport_round(
    arguments: argparse.Namespace, node_ip: str, curve: bool, folder: Path
) -> Iterator[Round]:
    keys = KeyPair.generate() if curve else None
    halves = None if keys is None else (keys.public, keys.secret)
    with Transport(
        "a", node_ip="127.0.0.1", ipc_folder=folder, keys=keys, curve=curve, **options_of(arguments)
    ) as transport:
        child = start_child("transport", arguments)
        send_line(
            child, base64.b64encode(pickle.dumps((node_ip, folder, halves, transport.address))).decode()
        )
        address = pickle.loads(base64.b64decode(read_line(child)))  # noqa: S301  our child
        transport.connect(address)

        def exchange(array: np.ndarray) -> Any:
            assert transport.send("b", b"", [array])
            while True:
                for event in transport.receive(10):
                    if isinstance(event, MessageReceived):
                        return event.arrays[0]

        yield exchange
        transport.send("b", b"quit")
        child.wait(10)


def serve_socket() -> None:
    connection = socket.socket(fileno=int(sys.stdin.readline()))
    made: dict[int, np.ndarray] = {}
    buffer = np.empty(0, np.uint8)
    while head := connection.recv(8, socket.MSG_WAITALL):
        size = int.from_bytes(head, "little")
        if buffer.nbytes != size:
            buffer = np.empty(size, np.uint8)
        read_into(connection, buffer)
        connection.sendall(head)
        connection.sendall(answer_of(size, made))


@contextmanager
def socket_round(arguments: argparse.Namespace, family: int) -> Iterator[Round]:
    if family == socket.AF_UNIX:
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs = listener.accept()[0]
        for end in (ours, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    child = start_child("socket", arguments, pass_fds=(theirs.fileno(),))
    send_line(child, str(theirs.fileno()))
    theirs.close()
    buffers: dict[int, np.ndarray] = {}

    def exchange(array: np.ndarray) -> Any:
        ours.sendall(array.nbytes.to_bytes(8, "little"))
        ours.sendall(array)
        ours.recv(8, socket.MSG_WAITALL)
        buffer = buffers.setdefault(array.nbytes, np.ones_like(array))
        read_into(ours, buffer)
        return buffer

    yield exchange
    ours.close()
    child.wait(10)


def read_into(connection: socket.socket, buffer: np.ndarray) -> None:
    view = memoryview(buffer)
    done = 0
    while done < len(view):
        done += connection.recv_into(view[done:])


def start_child(kind: str, arguments: argparse.Namespace, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--serve", kind, "--io-threads", str(arguments.io_threads)]
    command += ["--frame-kib", str(arguments.frame_kib)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def send_line(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def read_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


@contextmanager
def ray_round() -> Iterator[Round]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)

    @ray.remote(num_cpus=1)
    class Server:
        def __init__(self) -> None:
            self.made: dict[int, np.ndarray] = {}

        def exchange(self, array: np.ndarray) -> np.ndarray:
            return answer_of(array.nbytes, self.made)

    server = Server.remote()
    try:
        yield lambda array: ray.get(server.exchange.remote(array))
    finally:
        ray.shutdown()


def best_ms(exchange: Round, size_mb: float, seconds: float) -> float:
    """Best time of a round, over rounds of at most `seconds` in all, at least 3."""
    array = np.ones(int(size_mb * 1e6), np.uint8)
    answer = exchange(array)
    assert answer.nbytes == array.nbytes and answer[-1] == 1
    del answer
    best = float("inf")
    rounds = 0
    end = time.perf_counter() + seconds
    while rounds < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        exchange(array)
        best = min(best, time.perf_counter() - began)
        rounds += 1
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one pass, under 30 s")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--io-threads", type=int, default=1)
    parser.add_argument("--frame-kib", type=int, default=wire.FRAME_BYTES >> 10)
    parser.add_argument("--default-malloc", action="store_true", help="without the engine's malloc settings")
    parser.add_argument("--serve", choices=["transport", "socket"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_socket() if arguments.serve == "socket" else serve_transport(arguments)
        return
    if not arguments.default_malloc and "MALLOC_MMAP_MAX_" not in os.environ:
        # A process' malloc reads them when it starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | MALLOC)

    passes, seconds = (1, 0.15) if arguments.quick else (3, 1.0)
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "ipc"
        peers: dict[str, Callable[[], Any]] = {
            "unix socket (limit)": lambda: socket_round(arguments, socket.AF_UNIX),
            "transport, ipc": lambda: transport_round(arguments, "127.0.0.1", False, folder),
            "tcp socket (limit)": lambda: socket_round(arguments, socket.AF_INET),
            "transport, tcp": lambda: transport_round(arguments, "127.0.0.2", False, folder),
            "transport, tcp + CURVE": lambda: transport_round(arguments, "127.0.0.2", True, folder),
        }
        if not arguments.no_ray:
            peers["Ray actor call"] = ray_round
        for _ in range(passes):
            for name, peer in peers.items():
                with peer() as exchange:
                    times = [best_ms(exchange, size, seconds) for size in SIZES_MB]
                results[name] = [min(pair) for pair in zip(times, results.get(name, times), strict=True)]
    report(results)


def report(results: dict[str, list[float]]) -> None:
    print(f"push + pull of one array, ms, best; in brackets over the plain socket; {os.cpu_count()} cores, "
          f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, "
          f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}")  # fmt: skip
    print(f"{'':24}" + "".join(f"{size:>11g} MB    " for size in SIZES_MB))
    for name, times in results.items():
        limit = results["unix socket (limit)" if "ipc" in name or "unix" in name else "tcp socket (limit)"]
        cells = "".join(f"{ms:10.3f} ({ms / floor:4.1f}) " for ms, floor in zip(times, limit, strict=True))
        print(f"{name:24}{cells}")
    if ray := results.get("Ray actor call"):
        for name in ("transport, ipc", "transport, tcp", "transport, tcp + CURVE"):
            cells = "".join(
                f"{ours / theirs:17.2f} " for ours, theirs in zip(results[name], ray, strict=True)
            )
            print(f"{name + ' / Ray':24}{cells}")


if __name__ == "__main__":
    main()
