"""A pipeline without a flush: several clocks are in flight, and each stage updates its layers after each of them.

Begin with `walk`, which says what a stage computes on which weights. `worker` asks for it in a machine, `replay` in one
process, from the log of a run.
"""
