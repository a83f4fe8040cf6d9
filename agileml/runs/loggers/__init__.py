"""Callbacks that write the series of a run for other programs: to files of its folder, and to tracking services."""
