"""One moto server for all tests of this folder; credentials that are nobody's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.buyer_rig import has_parts, make_parts
from tests.aws.layer import ENVIRONMENT, Ec2Layer, forget_ended, moto_server
from tests.aws.metadata import Metadata, metadata_service


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def buyer_parts(moto_url: str, _nobody: None) -> str:
    """moto with the parts of the stack of `buyer_rig`: once for all its tests, and again where another test has had
    moto forget everything."""
    if not has_parts(moto_url):
        make_parts(moto_url)
    return moto_url


@pytest.fixture(autouse=True)
def _young_moto(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test pays for the instances of those before it."""
    yield
    if "moto_url" in request.fixturenames:
        forget_ended()


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def ec2(moto_url: str) -> Ec2Layer:
    return Ec2Layer(moto_url)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_service() as server:
        yield server
