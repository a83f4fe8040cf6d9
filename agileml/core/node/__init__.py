"""One machine of the engine: a worker that computes, a server that holds shards, a backup that holds cuts.

`node` joins the three behind one epoch fence; `worker`, `server` with its `shard`s, and `backup` speak to each other by
messages alone. `dirty_rows` finds the rows that changed since a cut (shard and backup share it), `piggyback` lets
pulls ride on pushes (worker, server and node share it), `retry` says when to send again, and `time_spent` measures what
a worker does. Begin with `worker` for the life of a clock, then `shard` for how a push is counted.
"""
