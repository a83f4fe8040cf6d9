"""Text of files and hosts that may be anybody's, for a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """A text with control characters as escapes: a terminal obeys them, up to the clipboard and what was shown."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
