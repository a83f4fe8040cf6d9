"""The data plane between the processes of a run: messages over ZeroMQ, and all-reduce over torch.distributed.

It knows nothing of shards or clocks: what it sends is any frozen dataclass that a `Codec` was made for, so sockets,
frames and heartbeats may be changed here without knowing the engine. Begin with `transport`, then `wire` (how a message
lies on the network) and `codec` (how a dataclass becomes a message).
"""
