"""The metadata service as IMDSv2 answers (a stub), events of EventBridge, prices by pages and their archive."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    CredentialRetrievalError,
    ReadTimeoutError,
    SSOTokenLoadError,
    UnauthorizedSSOTokenError,
)
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bidbrain.aws.calls import NoRightError, errors, refusal
from bidbrain.aws.notices import ImdsNotices, SqsNotices, parse_event
from bidbrain.aws.prices import Ec2Prices
from bidbrain.history.prices import Market
from bidbrain.history.readers import read_rows
from bidbrain.instants import parse_instant
from bidbrain.live.cloud import (
    Alert,
    CapacityError,
    CloudError,
    CredentialsError,
    QuotaError,
    RefusedError,
    UnknownOutcomeError,
)
from tests.aws.layer import Ec2Layer, failure
from tests.aws.metadata import Metadata
from tests.thorough import examples

pytestmark = pytest.mark.aws


def test_the_metadata_service(metadata: Metadata) -> None:
    source = ImdsNotices(f"http://127.0.0.1:{metadata.server_port}")
    assert source.notices() == ()  # 404 is no notice
    metadata.tokens += 1  # the token expired
    at = "2026-05-01T12:02:00Z"
    metadata.values["/latest/meta-data/spot/instance-action"] = json.dumps(
        {"action": "terminate", "time": at}
    )
    metadata.values["/latest/meta-data/events/recommendations/rebalance"] = (
        '{"noticeTime": "2026-05-01T11:00:00Z"}'
    )
    stop, hint = source.notices()
    assert (stop.alert, stop.instance_id, stop.deadline_s) == (Alert.TERMINATE, "i-0abc", parse_instant(at))
    assert (hint.alert, hint.deadline_s) == (Alert.REBALANCE, parse_instant("2026-05-01T11:00:00Z"))
    assert metadata.tokens == 3


def test_both_sources_name_one_notice(metadata: Metadata) -> None:
    at = "2026-05-01T12:02:00Z"
    metadata.values["/latest/meta-data/spot/instance-action"] = json.dumps(
        {"action": "terminate", "time": at}
    )
    (near,) = ImdsNotices(f"http://127.0.0.1:{metadata.server_port}").notices()
    far = parse_event(
        json.dumps(
            {
                "detail-type": "EC2 Spot Instance Interruption Warning",
                "time": "2026-05-01T12:00:00Z",
                "detail": {"instance-id": "i-0abc", "instance-action": "terminate"},
            }
        )
    )
    assert near == far


class Queue:
    """SQS with some messages; the calls whose numbers are in `failing` have no answer. What it gave once it does not
    give again, as within a visibility timeout."""

    def __init__(self, bodies: list[str], failing: set[int]) -> None:
        self.waiting = dict(enumerate(bodies))
        self.left = set(self.waiting)
        self.failing, self.calls = failing, 0

    def receive_message(
        self, QueueUrl: str, MaxNumberOfMessages: int, WaitTimeSeconds: int
    ) -> dict[str, Any]:
        self.calls += 1
        if self.calls in self.failing:
            raise ReadTimeoutError(endpoint_url="sqs")
        given = [self.waiting.popitem() for _ in range(min(MaxNumberOfMessages, len(self.waiting)))]
        return {"Messages": [{"ReceiptHandle": str(number), "Body": body} for number, body in given]}

    def delete_message_batch(self, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        assert 0 < len(Entries) <= 10 and len({each["Id"] for each in Entries}) == len(Entries)
        self.left -= {int(each["ReceiptHandle"]) for each in Entries}
        return {}


@given(messages=st.integers(0, 45), failing=st.sets(st.integers(1, 9)))
@example(messages=14, failing={2})
@settings(derandomize=True, max_examples=examples(100), deadline=None)
def test_no_message_is_deleted_whose_notice_nobody_got(messages: int, failing: set[int]) -> None:
    kind = "EC2 Spot Instance Interruption Warning"
    at, bodies = "2026-05-01T12:00:00Z", []
    for number in range(messages):
        detail = {"instance-id": f"i-{number}"}
        bodies.append(json.dumps({"detail-type": kind, "time": at, "detail": detail}))
    queue = Queue(bodies, failing)
    source, got = SqsNotices(queue, "url"), []
    for _ in range(20):
        with contextlib.suppress(UnknownOutcomeError):
            got += [each.instance_id for each in source.notices()]
        assert len(got) + len(queue.waiting) == messages and len(queue.left) >= len(queue.waiting)
    assert sorted(got) == sorted(f"i-{number}" for number in range(messages))
    assert not queue.left


def test_events_of_other_kinds_and_no_events() -> None:
    assert parse_event('{"detail-type": "EC2 Instance State-change Notification"}') is None
    for body in ("", "[]", "{}", '{"detail-type": "EC2 Spot Instance Interruption Warning"}'):
        with pytest.raises(ValueError, match="no EventBridge event"):
            parse_event(body)


def test_prices_come_by_pages_and_are_archived_once(ec2: Ec2Layer, tmp_path: Path) -> None:
    markets = [
        Market("c5.xlarge", "us-east-1a"),
        Market("c5.xlarge", "us-east-1b"),
        Market("m5.xlarge", "us-east-1a"),
    ]
    for number, market in enumerate(markets):
        ec2.prices[(market.instance_type, market.zone)] = 0.05 + number / 100
    ec2.prices[("c5.xlarge", "us-east-1f")] = 0.01  # not asked for
    archive = tmp_path / "prices.csv.gz"
    prices = Ec2Prices(ec2, markets, archive)
    now_s = parse_instant("2026-05-01T12:00:00Z")
    prices.refresh(now_s)
    assert [prices.price(market, now_s) for market in markets] == [50_000, 60_000, 70_000]
    ec2.prices[("c5.xlarge", "us-east-1a")] = 0.08
    prices.refresh(now_s + 30)  # too early
    assert prices.price(markets[0], now_s + 30) == 50_000
    prices.refresh(now_s + 60)
    assert prices.price(markets[0], now_s + 60) == 80_000
    assert prices.price(markets[0], now_s - 7000) == 50_000
    rows = list(read_rows(archive))
    assert len(rows) == 6 and {row[2] for row in rows} == {"us-east-1a", "us-east-1b"}
    assert Ec2Prices(ec2, [Market("c5.9x", "us-east-1a")]).price(Market("c5.9x", "us-east-1a"), now_s) is None


def test_prices_come_without_their_archive(ec2: Ec2Layer, tmp_path: Path) -> None:
    """A head that lost its power can have an empty file, a full disk takes none: prices are known all the same.
    What could not be archived is once it can be."""
    market = Market("c5.xlarge", "us-east-1a")
    ec2.prices[("c5.xlarge", "us-east-1a")] = 0.05
    archive, now_s = tmp_path / "kept" / "us-east-1.csv", parse_instant("2026-05-01T12:00:00Z")
    prices = Ec2Prices(ec2, [market], archive)
    prices.refresh(now_s)
    assert prices.price(market, now_s) == 50_000
    assert prices.trouble == f"prices are not archived: {archive}: No such file or directory"
    archive.parent.mkdir()
    archive.touch()
    prices.refresh(now_s + 60)
    assert prices.trouble.startswith(f"prices are not archived, move the file away: {archive}: empty (")
    archive.unlink()
    ec2.prices[("c5.xlarge", "us-east-1a")] = 0.06
    prices.refresh(now_s + 120)
    assert prices.price(market, now_s + 120) == 60_000 and not prices.trouble
    assert {row[4] for row in read_rows(archive)} == {50_000, 60_000}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("VcpuLimitExceeded", QuotaError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("UnauthorizedOperation", NoRightError),
        ("ExpiredTokenException", CredentialsError),
        ("RequestLimitExceeded", UnknownOutcomeError),
        ("InvalidParameterValue", RefusedError),
    ],
)
def test_error_codes(code: str, kind: type[CloudError]) -> None:
    error = refusal(code, "It is so.\n Really.", "3 x c5@a")
    assert type(error) is kind
    assert str(error) == f"3 x c5@a: AWS answers {code}, It is so. Really"


def test_what_botocore_repeats_has_no_known_outcome() -> None:
    """It repeats such an answer a few times and gives up; whether EC2 sold something is not known then."""
    codes = {
        *ThrottledRetryableChecker._THROTTLED_ERROR_CODES,
        *TransientRetryableChecker._TRANSIENT_ERROR_CODES,
    }
    for code in codes - {"LimitExceededException"}:
        assert type(refusal(code, "-", "3 x c5@a")) is UnknownOutcomeError, code


@pytest.mark.parametrize(
    ("code", "message", "kind", "said"),
    [
        (
            "InsufficientInstanceCapacity",
            "No m5.large.",
            CapacityError,
            "InsufficientInstanceCapacity, No m5.large",
        ),
        (
            "InternalError",
            "An error has occurred",
            UnknownOutcomeError,
            "InternalError, An error has occurred",
        ),
        ("Strange", "So it is", UnknownOutcomeError, "Strange, So it is"),
        ("502", "", UnknownOutcomeError, "500"),
    ],
)
def test_an_answer_of_status_500_says_its_code(
    code: str, message: str, kind: type[CloudError], said: str
) -> None:
    """EC2 answers so where it has no capacity for the head, too: its own sentence is what helps."""
    with pytest.raises(CloudError) as found, errors("head demo"):
        raise failure(code, message, "RunInstances", 500)
    assert type(found.value) is kind and str(found.value) == f"head demo: AWS answers {said}"


def test_credentials_that_do_not_come_are_waited_for_as_those_that_are_over() -> None:
    """As from a metadata service that is away while the head's credentials end."""
    why = re.escape("listing machines: Error when retrieving credentials")
    with pytest.raises(CredentialsError, match=why), errors("listing machines"):
        raise CredentialRetrievalError(provider="iam-role", error_msg="no answer")


@pytest.mark.parametrize(
    "error", [SSOTokenLoadError(error_msg="Token for my does not exist"), UnauthorizedSSOTokenError()]
)
def test_a_profile_of_sso_without_a_session_says_how_to_begin_one(error: Exception) -> None:
    with pytest.raises(CredentialsError, match=r"^credentials: .*aws sso login"), errors("credentials"):
        raise error


@pytest.mark.parametrize("code", ["OptInRequired", "AuthFailure"])
def test_a_region_that_is_not_enabled_is_one_sentence_that_says_so(code: str) -> None:
    error = refusal(code, "You are not subscribed to this service.", "spot prices")
    assert type(error) is CredentialsError  # buying pauses, what is held is kept
    assert str(error) == (
        f"spot prices: AWS answers {code}, You are not subscribed to this service; "
        "it says so, too, where the region is not enabled for the account"
    )
