"""The elasticity controller: it tracks machines, decides on membership changes and commits cuts.

`controller` receives every event and asks the parts in turn; each part owns its own state and shares only `control`.
Begin with `controller`, then `changes` for the steps of a change, `notices` for a preemption notice, `cut_keeper` for
cuts and checkpoints.
"""
