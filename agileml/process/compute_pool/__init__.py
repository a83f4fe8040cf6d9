"""Computing with several processes of one machine.

Begin with `pool.py`, the machine's side; `process.py` is a compute process. Parameters and contributions lie in shared
memory (`memory.py`), `shares.py` says which process computes which units, `orders.py` has the messages between them.
"""
