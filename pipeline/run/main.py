"""`python -m pipeline.run.main FOLDER LINKS NUMBER`: one worker of a pipeline, started by `processes.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.run.links import LinkError
from pipeline.run.processes import NEIGHBOUR_GONE, work

if __name__ == "__main__":
    try:
        work(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except LinkError as error:
        print(error, file=sys.stderr)
        sys.exit(NEIGHBOUR_GONE)
