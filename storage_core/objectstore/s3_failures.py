"""What can go wrong with a call of the S3 API, as data.

What failed is kept as a `Failure`, not as boto3's exception: those carry what the server sent back, and some servers
send back the request with its session token (lesson 85). No text of a server or of boto3 gets into a message or a log
but names of errors, regions and hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any

from storage_core.errors import Corrupt, InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported

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


_ADVICE_ACCESS = (
    "; check the credentials in the environment and what they may do; without s3:ListBucket S3 answers so for objects "
    "that do not exist, too"
)
_ADVICE_ELSEWHERE = (
    "; redirects are not followed: put the bucket's own region and endpoint into the URI, "
    "s3://bucket/prefix?region=…&endpoint=…"
)
_ADVICE_NOT_SENT = "; check the endpoint (AWS_ENDPOINT_URL, or endpoint= in the URI) and the region, or try again later"
_MEANINGS: Mapping[Trouble, tuple[type[TidemarkError], str]] = {
    Trouble.ABSENT: (NotFound, ""),
    Trouble.NO_UPLOAD: (NotFound, ""),
    Trouble.NO_BUCKET: (InvalidInput, "; make it, or name another in the URI"),
    Trouble.RANGE: (Corrupt, ""),
    Trouble.ACCESS: (Unavailable, _ADVICE_ACCESS),
    Trouble.NOT_IMPLEMENTED: (Unsupported, "; use a server that does: see `tidemark probe`"),
    Trouble.ELSEWHERE: (Unsupported, _ADVICE_ELSEWHERE),
    Trouble.REFUSED: (InvalidInput, "; check bucket, region and endpoint"),
    Trouble.NOT_SENT: (Unavailable, _ADVICE_NOT_SENT),
}
"""The error of a failure, and what to do about it; of any other, that it passes."""

_OF_ONE_OBJECT = frozenset({Trouble.ABSENT, Trouble.NO_UPLOAD, Trouble.PRECONDITION, Trouble.CONTENTION, Trouble.RANGE})
"""What says nothing about the rest of the store."""

RETRIED = frozenset({Trouble.NOT_SENT, Trouble.BUSY, Trouble.CONTENTION})


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed. `detail` is a status and S3's name of the error, or the kind of a lost connection."""

    trouble: Trouble
    detail: str

    def __str__(self) -> str:
        return f"{self.trouble} ({self.detail})"

    def error(self, uri: str, key: str = "") -> TidemarkError:
        """Return the error that says so of a key, or of the whole store, and what to do.

        It names the store unless only the object is concerned: a key alone does not tell which bucket does not answer.
        """
        kind, advice = _MEANINGS.get(self.trouble, (Unavailable, "; try again later"))
        subject = uri if not key else key if self.trouble in _OF_ONE_OBJECT else f"{key} in {uri}"
        return kind(f"{subject}: {self}{advice}", key=key or uri)


def printable_code(code: object) -> str:
    """Return S3's name of an error when it looks like one, and nothing of any other text."""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else "an error without a name"


class Refused(Exception):  # noqa: N818  # these four never leave this package: a call returns a `Failure`
    """The server answered with an error: what it said, as boto3 says it, and the region the request was signed for."""

    def __init__(self, response: Any, region: str) -> None:
        super().__init__()
        self.response = response
        self.region = region


class NotSent(Exception):  # noqa: N818
    """There is no connection; the text is the name of an error."""


class NoKeys(Exception):  # noqa: N818
    """There are no credentials."""


class WrongBytes(Exception):  # noqa: N818
    """The bytes are not those that the checksum in the answer's head is of."""


def answered(response: Any, own_region: str) -> Failure:
    """Return what an error that the server answered with says; `own_region` is what the request was signed for."""
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


def unanswered(error: Exception) -> Failure:
    """Return a failure without an answer, by the kind of the exception alone: its text holds addresses and more."""
    name = type(error).__name__
    match error:
        case NotSent():
            return Failure(Trouble.NOT_SENT, str(error))
        case NoKeys():
            return Failure(Trouble.ACCESS, "NoCredentialsError")
        case WrongBytes() | HTTPException() | OSError():
            return Failure(Trouble.BUSY, name)
        case _ if type(error).__module__.partition(".")[0] in ("botocore", "urllib3"):
            return _unanswered_by_boto3(error, name)
        case _:
            return Failure(Trouble.BUSY, f"an answer that is not understood: {name}")


def _unanswered_by_boto3(error: Exception, name: str) -> Failure:
    import urllib3.exceptions
    from botocore import exceptions

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
        case urllib3.exceptions.HTTPError():
            return Failure(Trouble.BUSY, name)
        case _:
            return Failure(Trouble.BUSY, f"an answer that is not understood: {name}")
