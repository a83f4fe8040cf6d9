"""One run from config to result, for Python users and the command line alike.

Begin with `session.run`. `result` is what a run returns; `assembly` chooses the fleet and the market that a config
names, and is the one place that knows every implementation.
"""

from agileml.session.printed import run_job
from agileml.session.result import Result
from agileml.session.session import run

__all__ = ["Result", "run", "run_job"]
