"""BidBrain: which machines to hold, judged by expected cost per unit of work."""
