"""Parameters and the state of a torch optimizer that stay where a machine computes."""
