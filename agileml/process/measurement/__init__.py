"""A process's measurements of itself: spans for a profile, and its compute threads' share of their cores.

Begin with `own_forecast.py` for how a machine predicts its speed; `core_time.py` reads the kernel's counts.
`tracing.py` is for `profile: true` and knows nothing of the others.
"""
