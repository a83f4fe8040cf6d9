"""Checkpoints: committed cuts in a folder or in S3, written in parts and made valid by a manifest.

The rules of a checkpoint are in `checkpoint.py`, its bytes in `format.py` and `manifest.py`; a store (`store.py`,
`s3.py`) knows only names and bytes, so a new one needs no knowledge of the rest. Begin with `checkpoint`.
"""
