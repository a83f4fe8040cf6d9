"""Shells around the core: transport, Ray actors, local nodes."""
