"""Keeping slow workers from holding up fast ones: BSP, SSP, ASP, FlexRR, LB-BSP and ElasticBSP, and their simulation.

Pure but for `cli` and `report`, and useful without the rest of the project. Begin with `consistency.py` and
`coverage.py`, the two rules that the training engine shares; each scheme has its own room and may be read alone.
"""

from straggler.compiled_code import name_place

name_place()
