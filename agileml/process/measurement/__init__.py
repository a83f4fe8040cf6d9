"""What a process of a run measures of itself: spans for a profile, and what its compute threads get of their cores.

Begin with `own_forecast.py` for how a machine foresees its speed; `core_time.py` reads what the kernel counts.
`tracing.py` is for `profile: true` and knows nothing of the others.
"""
