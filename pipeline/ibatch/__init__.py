"""iBatch (Wang, Pi, Zhou, AAAI 2019): parameters pulled in batches of layers while earlier layers compute.

Begin with `batches.py`, the exact optimum; `baselines.py` has the algorithms that it is compared with. Nothing else
depends on this folder.
"""
