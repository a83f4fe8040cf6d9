"""Memory that is not there: a sentence where the config asked for it, a traceback where the user's code did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.config.job import from_values
from agileml.errors import RunError
from agileml.session import run
from agileml.session.user_errors import blame_user

TOO_MANY = 10**12


def test_a_model_that_no_computer_holds_is_one_sentence(tmp_path: Path) -> None:
    values = {"application": "mf", "data": {"kind": "made"}, "model": {"rank": TOO_MANY}, "clocks": 1}
    with pytest.raises(RunError, match=r"^training: Unable to allocate .* array with shape") as raised:
        run(from_values({**values, "out": str(tmp_path / "run")}), sequential=True)
    assert raised.value.trace == ""


def test_the_users_own_line_is_shown() -> None:
    with (
        pytest.raises(RunError, match=r"^tables\(\): .*MemoryError: Unable to allocate") as raised,
        blame_user("tables()"),
    ):
        np.ones(TOO_MANY * 1000)
    assert "np.ones(TOO_MANY * 1000)" in raised.value.trace


class Unnamed(Application):
    """Trains, and then cannot say what its file is to hold."""

    def tables(self) -> list[Table]:
        return [Table("weights", 1, 2)]

    def load(self, slice_index: int) -> None: ...

    def process(self, unit: Unit, items: None, parameters: Mapping[str, Array]) -> Updates:
        return Updates({"weights": np.ones((1, 2), np.float32)})

    def as_model(self, parameters: Mapping[str, Array]) -> Mapping[str, Any]:
        return {"weights": parameters["wieghts"]}


def test_a_model_that_the_application_cannot_put_into_a_file_is_kept_as_its_tables(tmp_path: Path) -> None:
    values = {
        "application": "mine:Unnamed",
        "clocks": 3,
        "machines": {"transient": 0, "max": 1},
        "optimizer": {"learning_rate": 1.0},
    }
    with pytest.raises(RunError, match=r"^as_model\(\): KeyError: 'wieghts'"):
        run(from_values({**values, "out": str(tmp_path / "run")}), Unnamed(Settings()), sequential=True)
    assert load_file(tmp_path / "run" / "model.safetensors")["weights"].tolist() == [[-3.0, -3.0]]
