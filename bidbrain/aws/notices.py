"""Warnings of EC2 as one event type: from EventBridge through SQS at the head, from the metadata service on a node.

The same warning from both has one id (kind and machine), so the second copy is no news. The deadline is absolute:
two minutes after the event, or what the metadata service says. A rebalance recommendation is a hint, not a deadline.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.live.cloud import Alert, CloudError, InstanceNotice, notice_of

WARNING_S = 120
KINDS = {
    "EC2 Spot Instance Interruption Warning": Alert.TERMINATE,
    "EC2 Instance Rebalance Recommendation": Alert.REBALANCE,
}
IMDS = "http://169.254.169.254"
TOKEN_TTL_S = 21_600
BATCH = 10  # messages that SQS gives or takes at once


def _instant(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())


def parse_event(body: str) -> InstanceNotice | None:
    """An EventBridge event as a notice; None: an event of another kind. Raises ValueError where it is none at all."""
    try:
        event = json.loads(body)
        alert = KINDS.get(event["detail-type"])
        if alert is None:
            return None
        at_s = _instant(event["time"])
        instance_id = str(event["detail"]["instance-id"])
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"no EventBridge event ({type(error).__name__}: {error})") from None
    return notice_of(alert, instance_id, at_s + WARNING_S if alert is Alert.TERMINATE else at_s)


class SqsNotices:
    """The queue at the head. A message is deleted one call after it was given out: it is in the journal then."""

    def __init__(self, sqs: Any, queue_url: str) -> None:
        self._sqs = sqs
        self._url = queue_url
        self._given: list[dict[str, str]] = []
        self._unreadable, self._why = 0, ""

    @property
    def troubles(self) -> tuple[str, ...]:
        """A sentence about the messages so far that no notice could be read from; they are deleted all the same."""
        if not self._unreadable:
            return ()
        count = f"{self._unreadable} message{'s' * (self._unreadable > 1)}"
        return (
            f"the queue of notices: {count} could not be read, the last one because it is {self._why}; "
            "a warning may have been among them, and comes from the machine itself, too",
        )

    def notices(self) -> tuple[InstanceNotice, ...]:
        """The notices that arrived since the last call; if the queue fails in between, those that came before. Raises
        CloudError where there are none."""
        found: list[InstanceNotice] = []
        try:
            with errors("the queue of notices"):
                self._forget()
                while self._receive(found) == BATCH:
                    pass
        except CloudError:
            if not found:  # a warning counts seconds, and the next call says what is wrong
                raise
        return tuple(found)

    def _receive(self, found: list[InstanceNotice]) -> int:
        """Add the notices of the next messages to `found`; how many messages there were."""
        answer = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=0)
        messages = answer.get("Messages", [])
        for message in messages:
            self._given.append({"Id": str(len(self._given)), "ReceiptHandle": message["ReceiptHandle"]})
            try:
                notice = parse_event(message["Body"])
            except ValueError as error:
                self._unreadable, self._why = self._unreadable + 1, str(error)
                continue
            if notice is not None:
                found.append(notice)
        return len(messages)

    def _forget(self) -> None:
        for start in range(0, len(self._given), BATCH):
            self._sqs.delete_message_batch(QueueUrl=self._url, Entries=self._given[start : start + BATCH])
        self._given.clear()


class Metadata:
    """The metadata service of the machine that this runs on (IMDSv2: every question carries a token)."""

    def __init__(self, address: str = IMDS, timeout_s: float = 2.0) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._token: str | None = None

    def get(self, path: str) -> str | None:
        """The value below /latest/meta-data/, None for 404. Raises OSError where there is no such service."""
        return self._get(f"/latest/meta-data/{path}", retry=True)

    def _get(self, path: str, retry: bool) -> str | None:
        """An expired token is replaced once."""
        if self._token is None:
            self._token = self._ask(
                "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
            )
        try:
            return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code == 401 and retry:
                self._token = None
                return self._get(path, retry=False)
            raise

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._address + path, method=method, headers=headers)
        # No proxy: the address is link-local.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=self._timeout_s) as answer:
            return str(answer.read(), "utf-8")


class ImdsNotices:
    """Warnings for the machine that this runs on, from its metadata service. No notice: 404."""

    def __init__(self, address: str = IMDS, timeout_s: float = 2.0) -> None:
        self._address = address
        self._metadata = Metadata(address, timeout_s)
        self._machine_id: str | None = None

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Open warnings for this machine. Raises OSError where there is no metadata service."""
        if self._machine_id is None:
            self._machine_id = self._metadata.get("instance-id")
            if self._machine_id is None:
                raise OSError(f"{self._address}: the metadata service knows no instance id")
        found = []
        if (text := self._metadata.get("spot/instance-action")) is not None:
            found.append(notice_of(Alert.TERMINATE, self._machine_id, _instant(json.loads(text)["time"])))
        if (text := self._metadata.get("events/recommendations/rebalance")) is not None:
            found.append(
                notice_of(Alert.REBALANCE, self._machine_id, _instant(json.loads(text)["noticeTime"]))
            )
        return tuple(found)
