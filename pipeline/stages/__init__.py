"""Executable stages: a torch model cut between any two of its layers, so that each piece runs in a process of its own.

Begin with `traced.py`, which records a model, and `layering.py`, which makes layers of it (`overwriting.py` says what
must stay together); `cut.py` makes stages of layers; `passes.py` runs the forward and the backward of one microbatch
at a stage, `deferred.py` puts off gradients of weights, and `measure.py` times layers. The pieces together compute
the bits of the whole model, wherever it is cut.
"""
