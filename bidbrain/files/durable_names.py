"""New names in a folder, on disk before anything relies on them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# A file system that cannot sync a folder says so: those of virtual machines' shared folders and some others.
CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def flush_folder(folder: Path) -> None:
    """Make new names in a folder durable, as far as its file system can. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT:
            raise
    finally:
        os.close(descriptor)
