"""Calls of the S3 API: one client per store, made when it is first needed, and what can go wrong with a call as data.

boto3 tries nothing twice here, nor where a redirect points to: a conditional write that its library repeats meets its
own object (lesson 01), and boto3 recurses without end where all is redirected. What failed is kept as a `Failure`, not
as boto3's exception: those carry what the server sent back, and some servers send back the request with its session
token (lesson 85). No text of a server or of boto3 gets into a message or a log but names of errors, regions and hosts.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from storage_core.clock import Clock
from storage_core.errors import Corrupt, InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported
from storage_core.ids import Ids
from storage_core.objectstore.s3_heads import require_whole_heads
from storage_core.objectstore.s3_location import S3Location
from storage_core.process import HomeProcess

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_CODE = re.compile(r"[A-Za-z]{1,64}", re.ASCII)
_ACCESS_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
_BUSY_CODES = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "OperationAborted"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# With one of these and the name of another region S3 says that the request was signed for the wrong one; a HEAD has no
# body to say more than its status.
_WRONG_REGION_CODES = frozenset({"400", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
# Narrow, and without capitals: what a server sends back of a secret does not pass for a place.
_REGION = re.compile(r"[a-z]{2,5}(?:-[a-z]{2,16}){1,3}-[0-9]{1,2}", re.ASCII)
_HOST = r"[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,8}(?::[0-9]{1,5})?"
_PLACE = re.compile(rf"(?:https?://)?({_HOST})(?:[/?].*)?", re.ASCII | re.DOTALL)
_ADVICE_ACCESS = (
    "check the credentials in the environment and what they may do; without s3:ListBucket S3 answers so for objects "
    "that do not exist, too"
)


class Trouble(StrEnum):
    """What kind of failure a call met, as far as somebody decides by it."""

    ABSENT = "no such object"
    NO_BUCKET = "no such bucket"
    NO_UPLOAD = "no such multipart upload"
    PRECONDITION = "the precondition did not hold"
    CONTENTION = "another conditional write was under way"
    RANGE = "the range begins behind the object's end"
    ACCESS = "access denied"
    NOT_IMPLEMENTED = "the server does not implement this"
    ELSEWHERE = "the server sends requests for this bucket elsewhere"
    REFUSED = "the server refused the request"
    PARTS = "not all parts could be uploaded, and nothing was published"
    NOT_SENT = "the server cannot be reached"
    BUSY = "the server gave no usable answer"


RETRIED = frozenset({Trouble.NOT_SENT, Trouble.BUSY, Trouble.CONTENTION})


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed. `detail` is a status and S3's name of the error, or the kind of a lost connection."""

    trouble: Trouble
    detail: str

    def __str__(self) -> str:
        return f"{self.trouble} ({self.detail})"

    def error(self, subject: str) -> TidemarkError:
        """Return the error that says so of a key or a store, and what to do."""
        match self.trouble:
            case Trouble.ABSENT | Trouble.NO_UPLOAD:
                return NotFound(f"{subject}: {self}", key=subject)
            case Trouble.NO_BUCKET:
                return InvalidInput(f"{subject}: {self}; make it, or name another in the URI", key=subject)
            case Trouble.RANGE:
                return Corrupt(f"{subject}: {self}", key=subject)
            case Trouble.ACCESS:
                return Unavailable(f"{subject}: {self}; {_ADVICE_ACCESS}", key=subject)
            case Trouble.NOT_IMPLEMENTED:
                return Unsupported(f"{subject}: {self}; use a server that does: see `tidemark probe`", key=subject)
            case Trouble.ELSEWHERE:
                return Unsupported(
                    f"{subject}: {self}; redirects are not followed: put the bucket's own region and endpoint into the "
                    "URI, s3://bucket/prefix?region=…&endpoint=…",
                    key=subject,
                )
            case Trouble.REFUSED:
                return InvalidInput(f"{subject}: {self}; check bucket, region and endpoint", key=subject)
            case Trouble.NOT_SENT:
                return Unavailable(
                    f"{subject}: {self}; check the endpoint (AWS_ENDPOINT_URL, or endpoint= in the URI) and the "
                    "region, or try again later",
                    key=subject,
                )
            case _:
                return Unavailable(f"{subject}: {self}; try again later", key=subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a call is tried, how long pauses and waits are. A pause doubles each time, less a random part."""

    attempts: int = 5
    first_pause_ms: int = 100
    longest_pause_ms: int = 5_000
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0


class S3Calls:
    """The client of one store. Safe for threads; nothing is resolved, opened or sent before the first call.

    A copy of the process by fork() gets a client of its own: over a shared connection each could read the answer to a
    request of the other, and take a write of the other for its own.
    """

    def __init__(self, location: S3Location, retries: Retries, *, clock: Clock, ids: Ids) -> None:
        self._location = location
        self._retries = retries
        self._clock = clock
        self._ids = ids
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def attempts(self) -> int:
        """How often a call is tried."""
        return self._retries.attempts

    def once(self, act: Callable[[Any], T]) -> T | Failure:
        """Return what `act` makes of the client, or what went wrong. One attempt.

        Whatever `act` raises is a failure of the call, so it must do no more than call and read the answer.
        """
        import botocore.exceptions  # a third of a second that tables elsewhere do not pay

        try:
            return act(self._connected())
        except TidemarkError:
            raise
        except botocore.exceptions.ClientError as error:
            return _answered(error.response, self._connected().meta.region_name)
        except Exception as error:  # noqa: BLE001  # what boto3 makes of an answer that is not S3's, nobody has listed
            return _unanswered(error)

    def retried(self, act: Callable[[Any], T]) -> T | Failure:
        """Return what `act` makes of the client, trying again where the server was busy. For calls that may repeat."""
        found = self.once(act)
        for attempt in range(1, self.attempts):
            if not isinstance(found, Failure) or found.trouble not in RETRIED:
                break
            self.pause(attempt, found)
            found = self.once(act)
        return found

    def pause(self, attempt: int, failure: Failure) -> None:
        """Wait before the next attempt; `attempt` failed attempts lie behind."""
        longest = min(self._retries.longest_pause_ms, self._retries.first_pause_ms * 2 ** (attempt - 1))
        _logger.debug("%s: %s, attempt %d of %d", self._location.uri, failure, attempt, self.attempts)
        # Half of it at random: writers that met once would meet again.
        self._clock.sleep_ms(longest * (1 + self._ids.fraction()) / 2)

    def _connected(self) -> Any:
        if not self._home.is_here:  # and the lock may be held by a thread of the other process
            self._lock, self._client, self._home = threading.Lock(), None, HomeProcess()
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        from boto3.session import Session

        _keep_requests_out_of_logs()
        from botocore.config import Config

        config = Config(
            connect_timeout=self._retries.connect_timeout_seconds,
            read_timeout=self._retries.read_timeout_seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": self._location.addressing_style},
            max_pool_connections=32,
        )
        session = Session(botocore_session=_session())
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


def printable_code(code: object) -> str:
    """Return S3's name of an error when it looks like one, and nothing of any other text."""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else "an error without a name"


def _answered(response: Any, own_region: str) -> Failure:
    metadata, error = response.get("ResponseMetadata", {}), response.get("Error", {})
    status, headers = int(metadata.get("HTTPStatusCode", 0)), metadata.get("HTTPHeaders", {})
    code = str(error.get("Code", ""))
    detail = f"{status} {printable_code(code)}" if code != str(status) else code
    region = _place(_REGION, headers.get("x-amz-bucket-region"), error.get("Region"))
    if status in _REDIRECTS or (code in _WRONG_REGION_CODES and region not in (None, own_region)):
        host = _place(_PLACE, error.get("Endpoint"), headers.get("location"))
        named = f", to region {region}" if region else f", to {host}" if host else ""
        return Failure(Trouble.ELSEWHERE, detail + named)
    return Failure(_trouble(status, code), detail)


def _place(form: re.Pattern[str], *texts: object) -> str | None:
    """The first of the texts that has this form, or the part of it that the form asks for."""
    found = (form.fullmatch(each) for each in texts if isinstance(each, str))
    return next((each[each.lastindex or 0] for each in found if each), None)


def _trouble(status: int, code: str) -> Trouble:
    match status, code:
        case _, "NoSuchBucket":
            return Trouble.NO_BUCKET
        case _, "NoSuchUpload":
            return Trouble.NO_UPLOAD
        case 404, _:
            return Trouble.ABSENT
        case 412, _:
            return Trouble.PRECONDITION
        case 409, "ConditionalRequestConflict" | "OperationAborted":
            return Trouble.CONTENTION
        case 416, _:
            return Trouble.RANGE
        case ((401 | 403), _):
            return Trouble.ACCESS
        case 501, _:
            return Trouble.NOT_IMPLEMENTED
        # 200: an error inside the body of a completed upload. 408, 429 and 5xx: nobody knows how far the request came.
        case ((200 | 408 | 429), _):
            return Trouble.BUSY
        case _:
            return _by_code(status, code)


def _by_code(status: int, code: str) -> Trouble:
    if code in _ACCESS_CODES:
        return Trouble.ACCESS
    return Trouble.BUSY if status >= 500 or code in _BUSY_CODES else Trouble.REFUSED


def _unanswered(error: Exception) -> Failure:
    """A failure without an answer, by the kind of boto3's exception alone: their texts hold addresses and more."""
    import urllib3.exceptions
    from botocore import exceptions

    name = type(error).__name__
    match error:
        case (
            exceptions.EndpointConnectionError() | exceptions.ConnectTimeoutError() | exceptions.ProxyConnectionError()
        ):
            return Failure(Trouble.NOT_SENT, name)
        case exceptions.HTTPClientError() | exceptions.ConnectionError() | exceptions.IncompleteReadError():
            return Failure(Trouble.BUSY, name)
        case exceptions.ChecksumError() | exceptions.FlexibleChecksumError():
            return Failure(Trouble.BUSY, name)
        case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError():
            return Failure(Trouble.ACCESS, name)
        case exceptions.CredentialRetrievalError() | exceptions.TokenRetrievalError() | exceptions.ProfileNotFound():
            return Failure(Trouble.ACCESS, name)
        case exceptions.BotoCoreError():
            return Failure(Trouble.REFUSED, name)
        case urllib3.exceptions.HTTPError() | OSError():
            return Failure(Trouble.BUSY, name)
        case _:
            return Failure(Trouble.BUSY, f"an answer that is not understood: {name}")
