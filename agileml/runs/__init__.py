"""The output of a run: its folder, log of events, progress on the screen, summary, trace and report.

Everything but `folder` is computed from the log and the config, and can be changed without knowing how a run works.
Begin with `folder`, then `summary`.
"""
