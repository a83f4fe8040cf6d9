"""PipeDream's optimizer (thesis 5.3.1): which layers form which stage, on how many devices.

`planner` fills `tables` with the dynamic programs of `kernels`, over the `closed_sets` of a model's layers and the
`components` of a topology; `search` reads plans out of the tables, `assemble` makes a `plan` of each, `memory` says
what a stage keeps, and `fallbacks` what is searched when the exact search would take too long. The formulas of the cost
model are in `kernels.py`. Begin with `planner.py`.
"""
