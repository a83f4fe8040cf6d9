"""The driver of a run: its loop, the Ray actors that it starts, and its reaction to dead processes and SIGTERM.

`failures`, `last_spans` and `stop_signal` know nothing of Ray and can be changed alone. Begin with
`run_loop.RunLoop.run`, which hands fleet changes to `actor_group.ActorGroup` and events to the run's folder.
"""
