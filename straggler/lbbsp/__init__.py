"""LB-BSP (Chen et al.): batch sizes with which all workers end an iteration at the same time.

Begin with `policy.py`, which the simulator and running jobs ask; `sizes.py` finds the sizes, `apportion.py` shares out
whole units exactly and knows nothing of workers, `unit_sets.py` says which units change hands. How speeds are
predicted is in `straggler.speed` and may be changed alone.
"""
