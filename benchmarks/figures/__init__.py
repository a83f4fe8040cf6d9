"""Figures and tables of the papers, redrawn by the product's own commands.

    python -m benchmarks.figures [--only flexrr,bidbrain-2016] [--seed 0] [--out FOLDER] [--page docs/reproduction.md]

Each `Figure` names its commands and, for each statement of the paper, how it is checked on what the commands wrote;
the verdict follows from that check. Finished figures are kept in `--out` and not run again.
"""
