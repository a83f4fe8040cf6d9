"""Config files of tests."""

from pathlib import Path


def write(folder: Path, text: str) -> Path:
    """A config file of this text."""
    path = folder / "job.yaml"
    path.write_text(text)
    return path
