"""Static schedules of a pipeline (thesis 5.3.2): who runs which forward and backward, in which order.

Begin with `actions.py`, which makes them; `check.py` judges them, `versions.py` follows the weights' versions and
`timing.py` simulates. A policy may be added in `actions.py`; the checker says whether it can run to the end.
"""
