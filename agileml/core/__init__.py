"""The pure core: state machines, placement, shards, optimizers. No Ray, sockets, files or clocks."""
