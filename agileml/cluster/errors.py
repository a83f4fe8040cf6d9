"""What a cluster that cannot be used is told as."""

from __future__ import annotations


class ClusterError(ValueError):
    """A cluster that cannot be used: one sentence with the address, what was found and what is expected."""
