"""The data inside a frozen page."""

from __future__ import annotations

import json
from typing import Any


def frozen(html: str) -> dict[str, Any]:
    """The view that the page draws."""
    found: dict[str, Any] = json.loads(html.split("const FROZEN = ")[1].split(";\n")[0])
    return found
