"""One local cluster for all tests of a file: a cluster up and down takes seconds, a process has one at a time."""

import gc
import os
import signal
from collections.abc import Iterator

# Before NumPy and torch are imported: where there are as many processes as cores, BLAS' threads mostly spin, each
# waiting for another one that has no core (a fit of scikit-learn's took 43 s instead of 2.5 s on two busy cores).
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from agileml.cluster.local import LocalCluster  # noqa: E402

# How fast examples are made says how busy the computer is. The same examples every time: whether a change passes does
# not depend on a draw. `--hypothesis-profile new` draws others.
settings.register_profile("new", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("proteus", settings.get_profile("new"), derandomize=True)
settings.load_profile("proteus")
# nohup has a command ignore SIGHUP, and so do the processes that tests hang up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests that stay till the end: it went through them time and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _interruptible() -> None:
    """Each test begins with SIGINT as it is in a terminal, and so do the processes that it interrupts.

    A shell that runs a command in the background has it ignore SIGINT, and so does a command of ours once it was
    interrupted.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for plain torch: with more threads than free cores it takes a hundred times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    """A head without machines; gone before the next file, which may start a cluster of its own in this process."""
    from agileml.config.job import from_values
    from agileml.process.spec import variables_here

    deterministic = from_values({"application": "mlr", "data": {"kind": "digits"}, "clocks": 1})
    with LocalCluster(variables=variables_here(deterministic)) as cluster:
        yield cluster


@pytest.fixture
def cluster(local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The file's cluster; machines that a test leaves are taken away after it."""
    yield local_cluster
    for machine in local_cluster.tiered_nodes():
        local_cluster.remove(machine.node_id)
