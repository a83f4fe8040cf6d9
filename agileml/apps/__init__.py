"""Applications that come with the engine."""
