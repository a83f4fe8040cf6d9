"""A copy of a list of the API server that a thread keeps up to date by a watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from bidbrain.kubernetes.api import Api, ExpiredError
from bidbrain.live.cloud import CloudError, UnknownOutcomeError

AGAIN_S = 1.0  # until a list that failed is asked for again
STALE_S = 30.0  # without an answer for so long, the copy counts as out of date

T = TypeVar("T")


class Mirror(Generic[T]):
    """The objects of a list by name, watched from the first look on. Raises CloudError when made, if there is none."""

    def __init__(
        self, api: Api, path: str, read: Callable[[Iterable[Mapping[str, Any]]], dict[str, T]]
    ) -> None:
        """read: objects of the server as ours; it may leave some out."""
        self._api, self._path, self._read = api, path, read
        self._changed = threading.Condition()
        self._is_closed = threading.Event()
        self._failed_s: float | None = None
        self._problem: CloudError | None = None
        self._version = ""
        self._objects: dict[str, T] = {}
        self._list()
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)
        self._is_watching = False

    def objects(self) -> dict[str, T]:
        """The objects now. Raises the error of the last attempts where the copy is stale."""
        self._watch()
        with self._changed:
            if self._failed_s is not None and time.monotonic() - self._failed_s > STALE_S:
                assert self._problem is not None
                raise self._problem
            return dict(self._objects)

    def wait_for(self, condition: Callable[[dict[str, T]], bool], timeout_s: float) -> bool:
        """Wait until the objects are so; False: they are not, after `timeout_s`."""
        self._watch()
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closed.is_set() or condition(self._objects), timeout_s
            )

    def close(self) -> None:
        """End the thread with its next event; it holds nothing."""
        self._is_closed.set()
        with self._changed:
            self._changed.notify_all()

    def _watch(self) -> None:
        """A market that is only asked for its prices needs no thread."""
        with self._changed:
            if not self._is_watching:
                self._is_watching = True
                self._thread.start()

    def _list(self) -> None:
        found = self._api.get(self._path)
        with self._changed:
            self._version = found["metadata"]["resourceVersion"]
            self._objects = self._read(found["items"])
            self._failed_s, self._problem = None, None
            self._changed.notify_all()

    def _follow(self) -> None:
        while not self._is_closed.is_set():
            try:
                if self._problem is not None:
                    self._list()
                for kind, item in self._api.watch(self._path, self._version):
                    if self._is_closed.is_set():
                        return
                    self._take(kind, item)
            except CloudError as error:
                self._fail(error)
            except (KeyError, TypeError, ValueError, AssertionError) as error:
                self._fail(UnknownOutcomeError(f"{self._path}: found an object that is none ({error!r})"))

    def _fail(self, error: CloudError) -> None:
        with self._changed:
            self._problem = error
            if self._failed_s is None:
                self._failed_s = time.monotonic()
        if not isinstance(error, ExpiredError):
            self._is_closed.wait(AGAIN_S)

    def _take(self, kind: str, item: Mapping[str, Any]) -> None:
        """An event of the watch. A bookmark moves the version alone."""
        name = item["metadata"].get("name", "")
        with self._changed:
            self._version = item["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                return
            self._objects.pop(name, None)
            if kind != "DELETED":
                self._objects |= self._read([item])
            self._changed.notify_all()
