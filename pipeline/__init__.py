"""PipeDream: profile, partition, 1F1B schedules with weight stashing; iBatch."""
