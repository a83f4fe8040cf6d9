"""A job whose machines BidBrain buys and gives back while it trains.

`setup` reads the config, `service` runs BidBrain's loop in a thread, `trainer` translates between BidBrain and the run,
`fleet` is the fleet that a session sees, and `played` and `ec2` are the two backends. A new cloud is a backend and
touches nothing else. Begin with `fleet.py`.
"""
