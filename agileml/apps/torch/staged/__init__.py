"""A module in stages, for a pipeline: begin with `staged_module`; `layer_order` says where its tables can be cut, and
`stage_buffers` has a stage's running statistics."""
