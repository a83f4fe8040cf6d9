"""One machine of the engine: a worker that computes, a server that holds shards, a backup that holds cuts.

`node` joins the three behind one epoch fence; `worker`, `server` with its `shard`s, and `backup` do not know each
other, and each may be changed alone. Begin with `worker` for the life of a clock, then `shard` for how a push is
counted.
"""
