"""The shard: one partition as its owner holds it, and the sums that it exchanges with others for the norm.

`shard` counts pushes and applies clocks; `cuts` keeps what brings a shard back to its cuts, by the changed rows that
`dirty_rows` records. `clock_sums` holds the square sums that `norm_round` exchanges between owners.
Begin with `shard`.
"""
