"""Help between machines: those that are ahead in a clock take over units of those that are behind (`helping: true`).

Begin with `helping.py`, which stands between a worker and the shell; `given_range.py` computes a range that was given
away.
"""
