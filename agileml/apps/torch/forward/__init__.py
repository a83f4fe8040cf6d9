"""What the engine does inside a module's forward and backward: waiting for parameters, places for gradients, rows."""
