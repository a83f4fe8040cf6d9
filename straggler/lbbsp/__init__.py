"""LB-BSP (Chen et al.): batch sizes with which all workers end an iteration at the same time.

Begin with `sizes.py`; `apportion.py` shares out whole units exactly and knows nothing of workers. How speeds are
predicted is in `straggler.speed` and may be changed alone.
"""
