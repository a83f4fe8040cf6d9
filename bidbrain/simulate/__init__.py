"""Jobs on recorded markets: one (`simulator`), many (`experiment`), and those of a config (`plan`, `pool_plan`).

`simulator` defines what a simulation is; `kernel` and `compiled` do the same for the built-in policies a thousand times
faster, and a test holds the two together. `exchange` is the market's side. Begin with `simulator.py`.
"""
