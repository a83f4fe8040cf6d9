"""Blocks that no shard holds: cuts in stores, and tables that stay in the replica of the application."""
