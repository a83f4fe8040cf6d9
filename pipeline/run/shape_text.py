"""Stages as text: `stages: ends=3,9 replicas=2,1 recompute=0,1`, one line, with the times that made the schedule."""

from __future__ import annotations

from pipeline.run.config import RunError
from pipeline.run.job import StageShape


def shape_text(shape: StageShape) -> str:
    """The line of a shape; `parse_shape` gives it back."""
    parts = [
        f"ends={','.join(map(str, shape.ends))}",
        f"replicas={','.join(map(str, shape.replicas))}",
        f"recompute={','.join(str(int(r)) for r in shape.recompute)}",
    ]
    if shape.forward_s is not None and shape.backward_s is not None:
        parts.append(f"forward_s={','.join(map(repr, shape.forward_s))}")
        parts.append(f"backward_s={','.join(map(repr, shape.backward_s))}")
    return f"stages: {' '.join(parts)}\n"


def parse_shape(text: str) -> StageShape:
    """The shape of a line. Raises RunError."""
    try:
        values = dict(pair.split("=") for pair in text.removeprefix("stages:").split())
        times = {
            key: tuple(map(float, values[key].split(",")))
            for key in ("forward_s", "backward_s")
            if key in values
        }
        ends = tuple(map(int, values["ends"].split(",")))
        replicas = tuple(map(int, values["replicas"].split(",")))
        recompute = tuple(bool(int(r)) for r in values["recompute"].split(","))
        if any(len(each) != len(ends) for each in (replicas, recompute, *times.values())):
            raise ValueError("one of each for every stage")
        return StageShape(ends, replicas, recompute, **times)
    except (ValueError, KeyError):
        raise RunError(
            f"stages must read like `stages: ends=3,9 replicas=2,1 recompute=0,1`, found {text!r:.100}"
        ) from None
