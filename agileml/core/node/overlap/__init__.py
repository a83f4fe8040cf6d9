"""How a machine overlaps pulling and computing: whether at all, in which batches, and which pulls ride on pushes."""
