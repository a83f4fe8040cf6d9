"""One machine of the engine: a worker that computes, a server that holds shards, a backup that holds cuts.

`node` joins the three behind one epoch fence; `worker`, `server` with the room `shard`, and `backup` speak to each
other by messages alone. `bundles` keeps the worker's contributions until all partitions have counted them,
`cut_parts` sends the server's cuts to the backups, and `moves` copies shards between machines in a change. `overlap`
chooses how pulls and computing overlap and which pulls ride on pushes, `piecewise` is a worker that computes one
piece at a time, `retry` says when to send again, and `time_spent` measures what a worker does. Begin with `worker`
for the life of a clock, then `shard/shard.py` for how a push is counted.
"""
