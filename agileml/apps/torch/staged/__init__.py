"""A module in stages, for a pipeline: begin with `staged_module`; `stage_buffers` has a stage's running statistics."""
