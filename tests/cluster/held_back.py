"""An application of a user, for jobs of a cluster."""

# The user's own model: slow as long as there is something left to happen to its machines.
APPLICATION = """
import time
from pathlib import Path

from agileml.apps.logistic_regression import LogisticRegression


class HeldBack(LogisticRegression):
    def process(self, unit, items, parameters):
        if not Path({let_go!r}).exists():
            time.sleep(0.1)
        return super().process(unit, items, parameters)
"""
