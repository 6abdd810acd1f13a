"""Calls of the S3 API: a client per store for reads and one for all else, each made when it is first needed.

Reads go through `s3_reader` where their route can be told (`s3_route`), else through boto3 as well. boto3 tries nothing
twice here, nor where a redirect points to: a conditional write that its library repeats meets its own object (lesson
01), and boto3 recurses without end where all is redirected.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

from storage_core.clock import Clock
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.ids import Ids
from storage_core.objectstore.s3_failures import RETRIED, Failure, Refused, answered, unanswered
from storage_core.objectstore.s3_heads import require_whole_heads
from storage_core.objectstore.s3_location import S3Location
from storage_core.objectstore.s3_reader import S3Reader
from storage_core.objectstore.s3_route import Route, route
from storage_core.process import HomeProcess

_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a call is tried, how long pauses and waits are. A pause doubles each time, less a random part."""

    attempts: int = 5
    first_pause_ms: int = 100
    longest_pause_ms: int = 5_000
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0


class S3Calls:
    """The clients of one store. Safe for threads; nothing is resolved, opened or sent before the first call.

    A copy of the process by fork() gets clients of its own: over a shared connection each could read the answer to a
    request of the other, and take a write of the other for its own.
    """

    def __init__(self, location: S3Location, retries: Retries, *, clock: Clock, ids: Ids) -> None:
        self._location = location
        self._retries = retries
        self._clock = clock
        self._ids = ids
        self._begin()

    @property
    def attempts(self) -> int:
        """How often a call is tried."""
        return self._retries.attempts

    def now_ms(self) -> int:
        """Milliseconds since the epoch by this machine's clock."""
        return self._clock.now_ms()

    def once(self, act: Callable[[Any], T]) -> T | Failure:
        """Return what `act` makes of boto3's client, or what went wrong. One attempt.

        Whatever `act` raises is a failure of the call, so it must do no more than call and read the answer.
        """
        return self._tried(partial(self._through_boto3, act))

    def retried(self, act: Callable[[Any], T]) -> T | Failure:
        """Return what `act` makes of boto3's client, trying again where the server was busy, for it may repeat."""
        return self._repeated(lambda: self.once(act))

    def read(self, act: Callable[[Any], T]) -> T | Failure:
        """As `retried`, of a client that need know `get_object`, `head_object` and `list_objects_v2` only."""
        return self._repeated(lambda: self._tried(partial(self._through_reader, act)))

    def _tried(self, call: Callable[[], T]) -> T | Failure:
        try:
            return call()
        except TidemarkError:
            raise
        except Refused as refused:
            return answered(refused.response, refused.region)
        except Exception as error:  # noqa: BLE001  # boto3 raises whatever its parsers do, of any class
            return unanswered(error)

    def _repeated(self, once: Callable[[], T | Failure]) -> T | Failure:
        found = once()
        for attempt in range(1, self.attempts):
            if not isinstance(found, Failure) or found.trouble not in RETRIED:
                break
            self.pause(attempt, found)
            found = once()
        return found

    def pause(self, attempt: int, failure: Failure) -> None:
        """Wait before the next attempt; `attempt` failed attempts lie behind."""
        longest = min(self._retries.longest_pause_ms, self._retries.first_pause_ms * 2 ** (attempt - 1))
        _logger.debug("%s: %s, attempt %d of %d", self._location.uri, failure, attempt, self.attempts)
        # Half of it at random: writers that met once would meet again.
        self._clock.sleep_ms(longest * (1 + self._ids.fraction()) / 2)

    def _through_boto3(self, act: Callable[[Any], T]) -> T:
        import botocore.exceptions  # a third of a second that reads and tables elsewhere do not pay

        client = self._connected()
        try:
            return act(client)
        except botocore.exceptions.ClientError as error:
            raise Refused(error.response, client.meta.region_name) from None

    def _through_reader(self, act: Callable[[Any], T]) -> T:
        reader = self._reading()
        return self._through_boto3(act) if reader is None else act(reader)

    def _begin(self) -> None:
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._client: Any = None
        self._reader: S3Reader | None = None
        self._is_routed = False
        self._session: Any = None

    def _own_lock(self) -> threading.Lock:
        if not self._home.is_here:  # and the lock may be held by a thread of the other process
            self._begin()
        return self._lock

    def _connected(self) -> Any:
        with self._own_lock():
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _reading(self) -> S3Reader | None:
        """The client of reads; None where boto3's has to do them."""
        with self._own_lock():
            if not self._is_routed:
                found = route(self._location, os.environ, self._botocore)
                self._reader = None if found is None else self._reader_along(found)
                self._is_routed = True
            return self._reader

    def _reader_along(self, found: Route) -> S3Reader:
        return S3Reader(
            found,
            now_ms=self._clock.now_ms,
            connect_timeout_seconds=self._retries.connect_timeout_seconds,
            read_timeout_seconds=self._retries.read_timeout_seconds,
        )

    def _botocore(self) -> Any:
        """The session of both clients, which looks for credentials once."""
        if self._session is None:
            _keep_requests_out_of_logs()
            self._session = _session()
        return self._session

    def _connect(self) -> Any:
        from boto3.session import Session

        session = Session(botocore_session=self._botocore())
        from botocore.config import Config

        config = Config(
            connect_timeout=self._retries.connect_timeout_seconds,
            read_timeout=self._retries.read_timeout_seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": self._location.addressing_style},
            max_pool_connections=64,
        )
        region = self._location.region or session.region_name or "us-east-1"
        with suppress(ValueError):  # an endpoint in the AWS configuration that is none; the text repeats it
            client = session.client("s3", endpoint_url=self._location.endpoint, region_name=region, config=config)
            client.meta.events.register_last("before-parameter-build.s3", _follow_no_redirect)
            require_whole_heads(client)
            return client
        raise InvalidInput(f"{self._location.uri}: the endpoint in the AWS configuration is no address; correct it")


def _keep_requests_out_of_logs() -> None:
    """Lift boto3's loggers above DEBUG, where they print session tokens, unless somebody has set their level.

    A process that shows warnings only goes on doing so.
    """
    for name in ("botocore", "boto3"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(max(logging.INFO, logger.getEffectiveLevel()))


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Mark a request as redirected before it is sent: boto3 follows one redirect, and asks others where to."""
    context.get("s3_redirect", {})["redirected"] = True


def _session() -> Any:
    """A fresh session, which looks for credentials itself, with the descriptions of the API read once per process."""
    from botocore.session import Session

    session = Session()
    session.register_component("data_loader", _descriptions())
    return session


@cache
def _descriptions() -> Any:
    """What boto3 ships about the S3 API: a tenth of a second to parse, and always the same."""
    from botocore.loaders import create_loader

    return create_loader()
