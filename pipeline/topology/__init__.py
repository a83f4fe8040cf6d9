"""Machines as levels of equal components with links between them, as text or as a YAML file.

Begin with `levels.py`; `file.py` adds memory and device speeds. Units are bytes per second.
"""
