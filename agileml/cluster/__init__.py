"""Ray clusters: one on this computer, one that exists, its nodes, its job server, and removing leftovers.

A node here is a Ray node; the processes of a run start on it elsewhere (`process/actors.py`). `tokens`, `dashboard` and
`watchdog` may be changed alone; `fleet` is the protocol that a run's driver uses. Begin with `fleet`, then `local` and
`ray_cluster`.
"""
