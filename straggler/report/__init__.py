"""Reports of simulations: `summary` takes means over seeds, `figures` draws them, `folder` writes all of it.

Colours and labels may be changed without knowing the rest. Begin with `folder.write_report`.
"""
