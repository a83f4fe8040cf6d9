"""iBatch (Wang, Pi, Zhou, AAAI 2019): parameters pulled in batches of layers while earlier layers compute.

Begin with `batches.py`, the exact optimum. Nothing else depends on this folder.
"""
