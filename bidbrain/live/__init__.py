"""BidBrain live: a market's machines for a running job, bought and lost for real or by replay."""
