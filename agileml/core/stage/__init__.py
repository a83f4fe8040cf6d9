"""The three stages: which machines serve, back up and compute in each, and the choice between them.

`placement` assigns partitions and slices with the fewest moves and can be read alone. `traffic` predicts the bytes of
each stage, `link_rate` learns what links carry, and `auto_stage` decides from both; begin with `placement`. The
stages of a pipeline are another thing: `pipeline_stages` places them, and `walk` takes one of them through a clock.
"""
