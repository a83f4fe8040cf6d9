"""The arithmetic of parameters: cutting tables into partitions, adding contributions up, applying them.

The sequential run and every shard call the same functions, which is why their results have the same bits. Begin with
`fold` (the order of adding) and `apply`; a new optimizer needs only `optimizer`, a new learning rate schedule only
`learning_rate`.
"""
