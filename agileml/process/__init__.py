"""The processes of a run: the machine and the head, each a plain class between the pure core and the network.

A machine (`machine.py`) runs a `core.node` beside a compute thread; the head (`head.py`) runs the controller;
`actors.py` puts both into Ray actors. Warm-up, tracing, rendezvous buffers and checkpoint input and output may be
changed alone. Begin with `machine`, then `compute` and `run_transport`.
"""
