"""`python -m agileml.cli` is the `proteus` command."""

from agileml.cli import main

main()
