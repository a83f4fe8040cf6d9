"""The quick form of kill_one.py for `make bench`: three kills and a notice, ours alone. See there."""

from __future__ import annotations

import kill_one

if __name__ == "__main__":
    kill_one.main()
