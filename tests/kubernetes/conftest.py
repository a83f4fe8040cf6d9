"""Patience: a busy computer may be slow to do what KubeRay does at once."""

from __future__ import annotations

import pytest

from bidbrain.kubernetes import kuberay
from tests.kubernetes.ground import PATIENCE_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuberay, "MADE_S", PATIENCE_S)
