"""Policies: each decides which machines to hold; `registry` names them.

`footprint` holds the thesis' equations, `proteus` the thesis' policy, `renewal` and `today` ours, `standard` the simple
ones; `answer` checks what a policy answers. A new policy is a class with `decide`, and needs an entry in `registry`
only to have a short name. Begin with `base.py`.
"""
