"""When cuts are taken, when one is saved as a checkpoint, and which cut ends the run.

These are rules without machines: intervals, parts that have arrived, deadlines. Begin with `rule`; the controller's
`cut_keeper` is their only user, and shards take the cuts.
"""
