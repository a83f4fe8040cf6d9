"""Pictures: `plans` draws plans and schedules, `batching` draws batched transfers, `figure` writes each file whole.

Colours and labels may be changed without knowing the rest. Begin with `plans.draw_plan`.
"""
