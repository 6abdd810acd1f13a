"""Failures of S3 API calls, represented as data.

A failed call returns a `Failure` instead of raising boto3's exception. The exception contains the server's reply, and
some servers include the request and its session token in the reply (lesson 85). So messages and logs contain no text of
a server or of boto3, except names of errors, regions and hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported

_CODE = re.compile(r"[A-Za-z]{1,64}", re.ASCII)
_ACCESS_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
_BUSY_CODES = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "OperationAborted"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# If an error has one of these codes and contains another region, the request was signed for the wrong region. The reply
# to a HEAD has no body, so it contains only the status.
_WRONG_REGION_CODES = frozenset({"400", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
# The pattern is narrow and has no capital letters, so that a secret in a server's reply does not match.
_REGION = re.compile(r"[a-z]{2,5}(?:-[a-z]{2,16}){1,3}-[0-9]{1,2}", re.ASCII)
_HOST = r"[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,8}(?::[0-9]{1,5})?"
_PLACE = re.compile(rf"(?:https?://)?({_HOST})(?:[/?].*)?", re.ASCII | re.DOTALL)


class Trouble(StrEnum):
    """The kinds of failures that callers treat differently."""

    ABSENT = "no such object"
    NO_BUCKET = "the bucket does not exist"
    NO_UPLOAD = "no such multipart upload"
    PRECONDITION = "the condition of the write was not met"
    CONTENTION = "another conditional write was under way"
    RANGE = "the range begins after the end of the object"
    ACCESS = "access denied"
    NO_KEYS = "no credentials were found"
    NO_PROFILE = "the AWS profile does not exist"
    KEYS_NOT_FETCHED = "the credentials could not be fetched"
    NOT_IMPLEMENTED = "the server does not implement this request"
    ELSEWHERE = "the server redirects requests for this bucket to another address"
    REFUSED = "the server refused the request"
    PARTS = "not all parts could be uploaded, and nothing was published"
    NOT_SENT = "the server cannot be reached"
    NOT_TRUSTED = "the certificate of the server cannot be verified"
    BUSY = "the server gave no usable answer"


_ADVICE_ACCESS = (
    ". Check the credentials in the environment and their permissions. Without s3:ListBucket, S3 also gives this "
    "answer for objects that do not exist"
)
_ADVICE_OF_CODE: Mapping[str, str] = {
    "ExpiredToken": ". Renew the credentials",
    "InvalidAccessKeyId": ". Check the credentials in the environment",
    "RequestTimeTooSkewed": ". Correct the clock of this machine",
    "SignatureDoesNotMatch": ". Check the credentials in the environment",
}
"""The advice for each S3 error name that explains a failure."""
_ADVICE_ELSEWHERE = (
    ". Redirects are not followed: put the bucket's own region and endpoint into the URI, "
    "s3://bucket/prefix?region=…&endpoint=…"
)
_ADVICE_NOT_SENT = ". Check the endpoint (AWS_ENDPOINT_URL, or endpoint= in the URI) and the region, or try again later"
_MEANINGS: Mapping[Trouble, tuple[type[TidemarkError], str]] = {
    Trouble.ABSENT: (NotFound, ""),
    Trouble.NO_UPLOAD: (NotFound, ""),
    Trouble.NO_BUCKET: (InvalidInput, ". Create it, or name another in the URI"),
    Trouble.RANGE: (Corrupt, ""),
    Trouble.ACCESS: (Unavailable, _ADVICE_ACCESS),
    Trouble.NO_KEYS: (Unavailable, ". Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
    Trouble.NO_PROFILE: (Unavailable, ". Correct AWS_PROFILE, or add the profile to the configuration of AWS"),
    Trouble.KEYS_NOT_FETCHED: (Unavailable, ". Check the source of the credentials, then try again"),
    Trouble.NOT_IMPLEMENTED: (Unsupported, ". Use a server that implements the request: see `tidemark probe`"),
    Trouble.ELSEWHERE: (Unsupported, _ADVICE_ELSEWHERE),
    Trouble.REFUSED: (InvalidInput, ". Check bucket, region and endpoint"),
    Trouble.NOT_SENT: (Unavailable, _ADVICE_NOT_SENT),
    Trouble.NOT_TRUSTED: (Unavailable, ". Set AWS_CA_BUNDLE to a file with the certificate of its authority"),
}
"""The error class and the advice for each kind of failure. A failure of any other kind is temporary."""

_OF_ONE_OBJECT = frozenset({Trouble.ABSENT, Trouble.NO_UPLOAD, Trouble.PRECONDITION, Trouble.CONTENTION, Trouble.RANGE})
"""The kinds of failures that concern only a single object."""

_OF_THE_STORE = frozenset(
    {Trouble.NO_BUCKET, Trouble.NO_KEYS, Trouble.NO_PROFILE, Trouble.KEYS_NOT_FETCHED, Trouble.NOT_SENT}
)
"""The kinds of failures that concern every object. Error messages for failures of the whole store contain no object
key.
"""

RETRIED = frozenset({Trouble.NOT_SENT, Trouble.BUSY, Trouble.CONTENTION})


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call.

    Attributes:
        detail: The HTTP status and S3's name of the error, or the kind of connection failure. The message has the
            detail only if it begins with a status. Other details are names of classes.
    """

    trouble: Trouble
    detail: str

    def __str__(self) -> str:
        return f"{self.trouble} ({self.detail})" if self.detail[:1].isdigit() else str(self.trouble)

    def error(self, uri: str, key: str = "") -> TidemarkError:
        """Return the error for a key, or for the whole store, with advice.

        The message names the store, because a key alone does not identify the bucket. Only a message about a single
        object omits the store.
        """
        kind, advice = _MEANINGS.get(self.trouble, (Unavailable, ". Try again later"))
        advice = _ADVICE_OF_CODE.get(self.detail.rpartition(" ")[2], advice)
        of_the_store = not key or self.trouble in _OF_THE_STORE
        subject = uri if of_the_store else key if self.trouble in _OF_ONE_OBJECT else f"{key} in {uri}"
        return kind(f"{subject}: {self}{advice}", key=key or uri, detail=self.detail)


def printable_code(code: object) -> str:
    """Return the server's name for an error. If the text is not a valid error name, return a fixed text."""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else "an error without a name"


class Refused(Exception):  # noqa: N818  # these four never leave this package: a call returns a `Failure`
    """The server answered with an error.

    `Refused` contains the answer in boto3's form, and the region of the request's signature.
    """

    def __init__(self, response: Any, region: str) -> None:
        super().__init__()
        self.response = response
        self.region = region


class NotSent(Exception):  # noqa: N818
    """The connection failed. The exception's text is the name of an error."""


class NoKeys(Exception):  # noqa: N818
    """No credentials were found."""


class WrongBytes(Exception):  # noqa: N818
    """The bytes do not match the checksum in the headers of the answer."""


def answered(response: Any, own_region: str) -> Failure:
    """Return the failure for an error answer of the server. `own_region` is the region of the request's signature."""
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
    """Return the first text that matches this pattern. If the pattern has a group, return the group."""
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
        # 200: the body of a completed upload contains an error. 408, 429 and 5xx: the request may have been processed
        # partly.
        case ((200 | 408 | 429), _):
            return Trouble.BUSY
        case _:
            return _by_code(status, code)


def _by_code(status: int, code: str) -> Trouble:
    if code in _ACCESS_CODES:
        return Trouble.ACCESS
    return Trouble.BUSY if status >= 500 or code in _BUSY_CODES else Trouble.REFUSED


def unanswered(error: Exception) -> Failure:
    """Return the failure for a call without an answer.

    Only the class of the exception is used, because its text may contain addresses.
    """
    name = type(error).__name__
    match error:
        case NotSent():
            return Failure(Trouble.NOT_SENT, str(error))
        case NoKeys():
            return Failure(Trouble.NO_KEYS, "NoCredentialsError")
        case _ if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Failure(Trouble.NOT_TRUSTED, name)
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
            return Failure(Trouble.NO_KEYS, name)
        case exceptions.ProfileNotFound():
            return Failure(Trouble.NO_PROFILE, name)
        case exceptions.CredentialRetrievalError() | exceptions.TokenRetrievalError():
            return Failure(Trouble.KEYS_NOT_FETCHED, name)
        case exceptions.BotoCoreError():
            return Failure(Trouble.REFUSED, name)
        case urllib3.exceptions.HTTPError():
            return Failure(Trouble.BUSY, name)
        case _:
            return Failure(Trouble.BUSY, f"an answer that is not understood: {name}")
