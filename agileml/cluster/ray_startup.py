"""The surroundings in which Ray starts and stops: environment variables, signals, sessions, its logger and helpers.

Our nodes start without the helpers that a run has no use for (`lean_nodes`). Beside every raylet Ray starts a dashboard
agent and an agent that prepares runtime environments, and beside the head's an API server, an autoscaler and a log
monitor. Each is a Python process that imports Ray: 2.3 of the 2.6 CPU seconds that a node costs at its start, and 5.5
of the head's 6.5. Nothing of ours asks any of them, as the processes on our nodes have their variables from the node's
own environment. No actor or task of such a cluster may name a runtime environment: the raylet would wait in vain for
the agent, and end.

A raylet insists on both agents: it starts their commands, ends when one of them does, and reads their ports from files
of its session. `cat` stands in for each: its input is a pipe from the raylet, so it waits, and ends when the raylet
does. The ports are -1, as Ray's minimal package says it of services that it lacks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

STAND_IN = "cat"
DASHBOARD_AGENT, RUNTIME_ENV_AGENT = "--dashboard_agent_command", "--runtime_env_agent_command"
AGENTS = (DASHBOARD_AGENT, RUNTIME_ENV_AGENT)
HEAD_WITHOUT_HELPERS = {"no_monitor": True, "include_log_monitor": False, "include_dashboard": False}


def put_environment(values: Mapping[str, str | None]) -> None:
    """Set variables of this process; None removes one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and put back the old ones on exit."""
    before = {name: os.environ.get(name) for name in values}
    put_environment(values)
    try:
        yield
    finally:
        put_environment(before)


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C: cleaning up is short, and a second Ctrl-C must not stop it half way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def own_sessions() -> Iterator[None]:
    """Start Ray's processes in sessions of their own.

    `timeout` and supervisors send SIGTERM to our whole process group, and a run needs Ray's processes to end well.
    """
    from ray._private import services

    before = services.ConsolePopen
    services.ConsolePopen = functools.partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextlib.contextmanager
def spare_children() -> Iterator[None]:
    """Let Ctrl-C interrupt this process only: a child that is just being forked must not print a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    me = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == me:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Silence the greetings of Ray for every node."""
    import logging

    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def lean_nodes(left_out: Sequence[str] = AGENTS) -> Iterator[None]:
    """While this is open, nodes that this process starts lack these agents, and heads have no API server.

    The threads of Ray's client that a node makes here never take SIGTERM (`held_sigterm`).
    """
    from ray._private import ray_constants, services
    from ray._private.node import Node

    start, start_api_server = services.start_ray_process, Node.start_api_server
    init_client = Node._init_gcs_client

    def started(command: Sequence[str], process_type: str, *more: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            _write_ports(command, left_out)
            command = without_agents(command, left_out)
        return start(command, process_type, *more, **options)

    def no_api_server(node: Node, **_: Any) -> None:
        pass

    def client_without_sigterm(node: Node) -> None:
        with sigterm_blocked():
            init_client(node)

    services.start_ray_process, Node.start_api_server = started, no_api_server
    Node._init_gcs_client = client_without_sigterm
    try:
        yield
    finally:
        services.start_ray_process, Node.start_api_server = start, start_api_server
        Node._init_gcs_client = init_client


def without_agents(command: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """The command line of a raylet, with a stand-in for each agent that is left out."""
    names = [word.partition("=")[0] for word in command]
    assert all(names.count(agent) == 1 for agent in AGENTS), "this Ray starts its agents in another way"
    named = zip(names, command, strict=True)
    return [f"{name}={STAND_IN}" if name in left_out else word for name, word in named]


def _write_ports(command: Sequence[str], left_out: Sequence[str]) -> None:
    """Write the files in which the raylet of this command looks for the ports of its agents."""
    from ray._raylet import (  # type: ignore[attr-defined]
        DASHBOARD_AGENT_LISTEN_PORT_NAME,
        METRICS_AGENT_PORT_NAME,
        METRICS_EXPORT_PORT_NAME,
        RUNTIME_ENV_AGENT_PORT_NAME,
        persist_port,
    )

    dashboard = (DASHBOARD_AGENT_LISTEN_PORT_NAME, METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME)
    ports = {DASHBOARD_AGENT: dashboard, RUNTIME_ENV_AGENT: (RUNTIME_ENV_AGENT_PORT_NAME,)}
    values = dict(word[2:].partition("=")[::2] for word in command)
    for port in (port for agent in left_out for port in ports[agent]):
        persist_port(values["session_dir"], values["node_id"], port, -1)


@contextlib.contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM in this thread, and for good in the threads that it makes meanwhile. One that comes waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def held_sigterm() -> Iterator[None]:
    """Keep SIGTERM away from Ray's core while this process becomes a driver: it waits, and then finds the handler that
    was there before. Outside the main thread, which alone may set handlers, this does nothing.

    The core installs a handler of its own, which prints a stack trace and aborts the process, until Python's is
    installed again: a job that was stopped in this moment ended with that trace in its log. Any thread may take the
    signal, so threads that Ray's clients made before must have been made with `sigterm_blocked`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    with sigterm_blocked():
        try:
            yield
        finally:
            if handler is not None:  # else it was not set from Python, and cannot be
                signal.signal(signal.SIGTERM, handler)
