"""The schema of `configs/*.yaml`: a file or a mapping in, one frozen `JobConfig` or one `ConfigError` out.

Begin with `job.py`. Every section is a pydantic class whose name ends with `Config`; a key may be added to one
without knowing the rest. `text` and `section` make the sentences for bad input.
"""

from agileml.config.job import JobConfig, dump, from_values, load
from agileml.config.text import ConfigError

__all__ = ["ConfigError", "JobConfig", "dump", "from_values", "load"]
