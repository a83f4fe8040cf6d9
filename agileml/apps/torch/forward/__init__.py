"""The engine's part in a module's forward and backward: waiting for parameters, places for gradients, rows."""
