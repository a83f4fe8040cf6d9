"""Pipelines that train: one process for each replica of each stage, on one host or on several.

Begin with `worker.py`, which runs one worker's fixed list of actions, and `sequential.py`, which runs all workers in
one process with the same bits. `weights.py` keeps the versions of a stage's weights, `tree.py` adds up gradients,
`links.py` says what a connection does and `shared_memory.py` is the one between processes of a host. `config.py` is the
file that a user writes, `job.py` makes everything from it, `processes.py` starts the workers.
"""
