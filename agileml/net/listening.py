"""Listening: the socket of a transport, bound to a private file and to a TCP port."""

import os
import secrets
import stat
from pathlib import Path
from typing import Any

import zmq

from agileml.net import wire
from agileml.net.keys import KeyPair
from agileml.net.links import UNREAD_MESSAGES
from agileml.net.liveness import REFUSALS, Monitor, set_reconnects

MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, less its final zero
MOST_TRIES = 100  # at a folder that others may remove meanwhile


class TransportError(Exception):
    """The transport cannot be opened, or an address is of no use. The text says why."""


def listen(context: Any, node_ip: str, ipc_path: Path, keys: KeyPair | None) -> tuple[Any, Monitor, str]:
    """Bind a PULL socket to the file, without keys, and to a free TCP port of `node_ip`, with the run's keys.

    Returns the socket, the monitor of its refused handshakes and the TCP endpoint. Raises zmq.ZMQError, that of ENOENT
    where the file's folder is gone.
    """
    pull = context.socket(zmq.PULL)
    pull.linger = 0
    pull.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
    pull.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    pull.setsockopt(zmq.TCP_KEEPALIVE, 1)  # so that connections from hosts that vanished do not pile up
    pull.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    set_reconnects(pull)
    try:
        pull.bind(f"ipc://{ipc_path}")
    except zmq.ZMQError:
        pull.close(0)
        raise
    monitor = Monitor(context, pull, REFUSALS)
    # Options hold for later binds only: the file above needs no keys, the port below does.
    if keys is not None:
        keys.serve(pull)
    pull.bind(f"tcp://{f'[{node_ip}]' if ':' in node_ip else node_ip}:*")
    return pull, monitor, pull.get_string(zmq.LAST_ENDPOINT)


def has_room(folder: Path) -> bool:
    """Whether the path of a folder leaves room for the name of a socket."""
    return len(os.fsencode(_socket_in(folder))) <= MAX_SOCKET_PATH_BYTES


def _socket_in(folder: Path) -> Path:
    return folder.absolute() / f"{secrets.token_hex(4)}.ipc"


def private_socket_path(folder: Path) -> Path:
    """Make the folder, if it is missing, and return a free file name in it.

    Raises TransportError where the name is too long or others may enter the folder.
    """
    path = _socket_in(folder)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise TransportError(
            f"ipc folder {folder} is too long: with the socket's name it has {len(os.fsencode(path))} bytes, "
            f"the system allows {MAX_SOCKET_PATH_BYTES}"
        )
    found = _made(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise TransportError(
            f"ipc folder {folder} is not private: expected is a directory of user {os.geteuid()} with mode 0700, "
            f"found {stat.filemode(found.st_mode)} of user {found.st_uid}"
        )
    return path


def files_around(folder: Path) -> str:
    """Identifies the folder that this one lies in, as the kernel does: containers of one host may have the same IP, and
    each a /tmp of its own. This folder itself is made anew when all processes in it have ended."""
    found = folder.absolute().parent.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _made(folder: Path) -> os.stat_result:
    """The folder, which another process of the run may just be removing as the last one in it."""
    for left in reversed(range(MOST_TRIES)):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder.lstat()
        except OSError as error:
            if not left or not isinstance(error, FileNotFoundError | FileExistsError):
                raise TransportError(f"ipc folder {folder} cannot be made: {error}") from error
    raise AssertionError
