"""A job whose machines BidBrain buys and gives back while it trains.

`setup` reads the config, `service` runs BidBrain's loop in a thread, `trainer` translates between BidBrain and the run,
and `fleet` is the fleet that a session sees, through `protocol`. `played`, `ec2` and `kubernetes` are backends; the
clouds share `joined`. `nodes` maps instances to Ray nodes, `drain_notices` reads notices from Ray. `clocks` measures
for the estimators, `log` writes the market's events, `bill` closes the books. A new cloud is a backend here, and is
named in `session.clouds`. Begin with `fleet.py`.
"""
