"""Predictors of a worker's speed in its next iteration, and made traces to judge them by.

Begin with `predictors.py`, which has the interface and the simple ones; `narx.py` also sees CPU and memory and trains
a small net, at once or in `background.py`. A predictor may be added without knowing the rest.
"""
