"""A model's profile: seconds, output bytes and weight bytes of each layer, as a graph.

Begin with `layers.py`, which is pure and has the file format; `profiler.py` measures a torch module and
`user_model.py` finds the function that builds it. The rest of the package reads profiles only.
"""
