"""`python -m pipeline.run.main FOLDER LINKS COUNT PARENT`: the workers of a pipeline, started by `processes.py`.

Loading torch and its exporter takes seconds of a core, and is the same for all workers: this process does it once, and
each worker is a fork of it. It calls nothing of the user's, so workers share no open file and no thread of theirs. As
each worker ends, it prints the worker's number and exit code (minus the signal, if one ended it). If the process that
started it (PARENT) is killed, it ends the workers and removes what they share.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from pipeline.run.links import LinkError
from pipeline.run.processes import NEIGHBOUR_GONE, log_of, work
from pipeline.stages.traced import trace_model

PR_SET_PDEATHSIG = 1


def main(folder: Path, links: Path, count: int, parent: int) -> None:
    """Fork the workers and wait for them."""
    numbers: dict[int, int] = {}  # of workers, by their process

    def abandoned(*_: object) -> None:
        for pid in numbers:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(links, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, abandoned)
    _when_parent_dies(signal.SIGTERM)
    if os.getppid() != parent:  # it has died already, while torch was loaded here
        abandoned()
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    # The exporter loads most of itself when it is first used.
    trace_model(nn.Linear(1, 1), (torch.zeros(1, 1),))
    gc.collect()
    gc.freeze()
    for number in range(count):
        if (pid := os.fork()) == 0:
            _be_worker(folder, links, number)
        numbers[pid] = number
    while numbers:
        pid, status = os.wait()
        print(numbers.pop(pid), os.waitstatus_to_exitcode(status), flush=True)


def _when_parent_dies(number: signal.Signals) -> None:
    """Have the kernel send this process a signal then."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _be_worker(folder: Path, links: Path, number: int) -> NoReturn:
    code = 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _when_parent_dies(signal.SIGKILL)
    try:
        with log_of(folder, number).open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        work(folder, links, number)
        code = 0
    except LinkError as error:
        print(error, file=sys.stderr)
        code = NEIGHBOUR_GONE
    except BaseException:  # this process ends here, whatever happened
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
