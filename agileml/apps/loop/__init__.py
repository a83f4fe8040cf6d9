"""The user's own training loop: a script or a function that every machine runs, in step with the engine.

`source` is the user's code as it travels; `script` runs it in a thread that takes turns with the thread that computes;
`steps` are the rules of one pass through the loop's body; `callers` tells where the loop stands; `optimizers`
read torch's optimizers and schedules; `as_prepared` sees that a loop changes none of them.
"""
