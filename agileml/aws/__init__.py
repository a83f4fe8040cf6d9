"""The side of AWS that knows the training: the commands `proteus aws`, and the programs that run on instances.

`commands` puts a config and the stack together, `wheel` packs this installation for instances, `boot` is the first
program on an instance, `joins` asks whether the head lets it join, `preemption` tells Ray of an interruption. `boot`
and `preemption` start processes and know nothing of the engine. Begin with `commands.py`, or with `boot.py` for what an
instance does.
"""
