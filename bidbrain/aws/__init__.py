"""EC2 as BidBrain's market: prices, purchases, interruption notices, and the stack of AWS resources around a job.

`ec2` buys and ends instances, `prices` and `notices` read what AWS says of them; `stack` makes and removes the stack,
and can be changed without knowing the market. All calls go through `calls`, which turns errors of boto into those of
`live.cloud`. Begin with `ec2.py` (the market of one job), then `stack/template.yaml` (what a stack consists of).
"""
