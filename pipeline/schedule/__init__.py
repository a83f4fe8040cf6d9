"""Static schedules of a pipeline (thesis 5.3.2): the forwards and backwards of each worker, in order.

Begin with `actions.py`, which says what a schedule is; `policies.py` makes them, by the walk through time of `walk.py`;
`rules.py` says what an action must wait for, `check.py` judges, `versions.py` follows the weights' versions and
`timing.py` simulates. A policy may be added in `policies.py`; the checker says whether it can run to the end.
"""
