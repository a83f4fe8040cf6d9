"""The events of a run: one class for each thing that happens, and the log `events.jsonl` that is written from them.

The room knows no other room of agileml; whatever a class says, the report, the summary and the screen may rely on.
Begin with `run`; `schema` writes and reads a line of the log.
"""
