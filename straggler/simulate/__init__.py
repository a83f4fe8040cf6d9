"""Simulation of straggler schemes: patterns of slow workers, the schemes themselves, an event-driven engine.

Begin with `schemes.run_scheme`. A pattern or a scheme may be added in `patterns.py` or `schemes.py` without knowing
`engine.py`; equal seeds give every scheme the same speeds.
"""
