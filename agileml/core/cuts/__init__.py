"""When cuts are taken, when one is saved as a checkpoint, and which cut ends the run.

The rules deal in intervals, arrived parts and deadlines, and know nothing of machines. Begin with `rule`; the
controller's `cut_keeper` is their only user, and shards take the cuts.
"""
