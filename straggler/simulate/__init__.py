"""Simulation of straggler schemes: patterns of slow workers, the schemes themselves, an event-driven engine.

`patterns` draws each worker's speed as a `profile`; `engine` runs the workers on simulated `computer`s, `policies` tell
it when a worker may go on and with how many units, `groups` which workers may help which, and `outcome` holds the
result. A pattern may be added in `patterns.py`, and a scheme of existing parts in `schemes.py`, without knowing
`engine.py`; equal seeds give every scheme the same speeds. Begin with `schemes.run_scheme`.
"""
