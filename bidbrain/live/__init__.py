"""BidBrain live: a market's instances for a running job, bought and lost for real or by replay."""
