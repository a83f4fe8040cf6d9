"""Pipeline-parallel training (PipeDream): profile a model, split it into stages, schedule them, simulate the schedule.

Pure but for `cli`, `report` and the profiler, and useful without the rest of the project. Begin with
`partition/planner.py`; `ibatch` (batched transfers) and `sizing` (how many GPUs and servers) stand alone.
"""

from pipeline.compiled_code import name_place

name_place()
