"""How likely an eviction is, and how soon it comes: from prices (`eviction`, `survival`) or observed losses (`hazard`).

All of them are an `eviction.EvictionModel`; a new source of knowledge is one more of them. The tables are exact and
compiled by numba. Begin with `eviction.py`.
"""
