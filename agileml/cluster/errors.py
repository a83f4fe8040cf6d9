"""The error for clusters that cannot be used."""

from __future__ import annotations


class ClusterError(ValueError):
    """A cluster cannot be used. The text is one sentence: the address, what was found and what is expected."""
