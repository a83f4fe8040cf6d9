"""How a machine overlaps pulling and computing: whether at all, and in which batches."""
