"""What a run leaves and shows: its folder, its log of events, the screen, the summary, the trace and the report.

Everything but `folder` is computed from the log and the config, and can be changed without knowing how a run works.
Begin with `folder`, then `summary`.
"""
