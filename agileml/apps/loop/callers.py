"""Where the user's code is while it calls: inside a loop of its own, or not."""

from __future__ import annotations

import ast
import linecache
import sys
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from agileml.core.compute.traces import is_of_user

LOOPS = ast.For | ast.AsyncFor | ast.While
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def loop_around() -> str | None:
    """The line, as train.py:12, at which the user's code is inside a loop; None: it is in no loop.

    A loop that asks for its next item is not inside itself.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_of_user(file) and _is_in_loop(frame):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_in_loop(frame: FrameType) -> bool:
    text = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a cell of a notebook that is no plain Python
        return False
    line, _, column, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    at = line or frame.f_lineno, column or 0
    around = [node for node in ast.walk(tree) if isinstance(node, LOOPS | FUNCTIONS) and _has(node, at)]
    functions = [(node.lineno, node.col_offset) for node in around if isinstance(node, FUNCTIONS)]
    own = max(functions, default=(0, 0))  # a function that is made in a loop is called elsewhere
    return any(isinstance(node, LOOPS) and (node.lineno, node.col_offset) > own for node in around)


def _has(node: Any, at: tuple[int, int]) -> bool:
    """Whether a line and column are in the body of a loop or function."""
    body = node.body if isinstance(node.body, list) else [node.body]
    first, last = body[0], body[-1]
    return (first.lineno, first.col_offset) <= at < (last.end_lineno, last.end_col_offset)
