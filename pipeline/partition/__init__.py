"""PipeDream's optimizer (thesis 5.3.1): which layers form which stage, on how many devices.

Begin with `planner.py`; it fills `tables.py` with the dynamic programs of `kernels.py`, reads plans out of them with
`search.py`, and `assemble.py` makes a `Plan` of each. A term of the cost model may be changed in `kernels.py` alone.
"""
