"""Locations on S3, and the routes that reads take.

    s3://bucket/prefix?endpoint=https://host:9000&region=eu-central-1&path_style=true

| Part | In the URI | Else in the environment | Else |
|---|---|---|---|
| endpoint | `endpoint` | `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` | Amazon's |
| region | `region` | `AWS_REGION`, `AWS_DEFAULT_REGION` | the region of the profile, otherwise `us-east-1` |
| path style | `path_style` | `TIDEMARK_S3_PATH_STYLE` | true if there is an endpoint, otherwise false |

Credentials are never part of a location. boto3 finds them in its usual sources. A URI with credentials is refused, and
the message does not repeat the URI (docs/architecture/lessons.md, lesson 85).

A `Route` contains the host of reads and the keys for their signatures. A location has a `Route` only if the host and
the keys can be determined without a client of boto3. The creation of boto3's client takes a third of a second. A GET of
boto3 takes several times as long as the request itself. So reads use `s3_calls.S3Reader` instead of boto3 if
`s3_location` supports every setting that affects the reads. Reads use boto3 in each of these cases:

- a proxy
- an AWS configuration that changes addresses or requests
- a variable `AWS_…` that this module does not handle
- a directory bucket or an access point
- a region with hosts that do not end in amazonaws.com
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from storage_core.base.errors import InvalidInput
from storage_core.store.contract import is_safe_key

USERINFO = re.compile(r"(?:^|/)[^/]*:[^/]*@")
"""A pattern for text in a path that looks like a name and a password (`name:password@`)."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_UNWRITTEN = re.compile(r"[^!-~]")
_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_BOOLEANS = {"true": True, "false": False}
_PARAMETERS = ("endpoint", "region", "path_style")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PATH_STYLE_VARIABLES = ("TIDEMARK_S3_PATH_STYLE",)
FROM_THE_ENVIRONMENT = "Credentials come from the environment or the AWS configuration, never from a URI"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A prefix of a bucket, and the settings that are needed to reach it. Contains no secret.

    Attributes:
        prefix: The prefix without a final slash, or an empty string.
        endpoint: The URL of the server. None for Amazon's own endpoint.
        region: The name of the region. None for the region of the profile.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False

    @property
    def uri(self) -> str:
        """The canonical URI, including settings from the environment.

        With this URI, another process reaches the same location.
        """
        path = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        parameters = {"endpoint": self.endpoint, "region": self.region}
        if self.path_style != (self.endpoint is not None):
            parameters["path_style"] = str(self.path_style).lower()
        query = urlencode({name: value for name, value in parameters.items() if value is not None}, safe="/:")
        return f"{path}?{query}" if query else path

    @property
    def addressing_style(self) -> Literal["path", "virtual", "auto"]:
        """The name that boto3 has for the style of addresses.

        At Amazon's own endpoint, boto3 chooses the style, because a bucket name with dots needs path style.
        """
        if self.path_style:
            return "path"
        return "auto" if self.endpoint is None else "virtual"

    def object_key(self, key: str) -> str:
        """Return the name in the bucket for a table-relative key or prefix."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def table_key(self, object_key: str) -> str:
        """Return the table-relative key for a name in the bucket, as the inverse of `object_key`."""
        return object_key[len(self.object_key("")) :]


def parse_s3_uri(uri: str, environment: Mapping[str, str]) -> S3Location:
    """Return the location of the URI, completed from the environment.

    Raises `InvalidInput` for an invalid bucket or prefix, and for an unknown, repeated or empty parameter. Raises
    `InvalidInput` also for anything that looks like credentials. The message does not repeat the credentials or the
    URI.
    """
    rest = uri.split("://", 1)[1]
    path, _, query = rest.partition("?")
    bucket, _, prefix = path.partition("/")
    if "@" in bucket or USERINFO.search(path):
        raise InvalidInput(
            f"s3://…@…: the URI may contain credentials. {FROM_THE_ENVIRONMENT}. Write s3://bucket/prefix"
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise InvalidInput(
            "the name of the bucket in the URI is not valid. Give 3 to 63 characters of a-z 0-9 . - in the form "
            "s3://bucket/prefix"
        )
    prefix = prefix.removesuffix("/")
    if "#" in rest or path.endswith("//") or (prefix and not is_safe_key(prefix)):
        raise InvalidInput(
            f"s3://{bucket}/…: the prefix contains '#', '.', '..' or an empty segment. Choose another prefix"
        )
    given = _parameters(bucket, query)
    endpoint = _chosen(given, "endpoint", environment, _ENDPOINT_VARIABLES)
    region = _chosen(given, "region", environment, _REGION_VARIABLES)
    style = _chosen(given, "path_style", environment, _PATH_STYLE_VARIABLES)
    return S3Location(
        bucket=bucket,
        prefix=prefix,
        endpoint=None if endpoint is None else _endpoint(*endpoint),
        region=None if region is None else _region(*region),
        path_style=endpoint is not None if style is None else _path_style(*style),
    )


def _parameters(bucket: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    is_exact = len(given) == len(pairs) and bool(given) == bool(query) and not _ESCAPE.search(query)
    if not is_exact or not all(name in _PARAMETERS and value for name, value in pairs):
        raise InvalidInput(
            f"s3://{bucket}/…: the parameters of the URI are not valid. Give only {', '.join(_PARAMETERS)}, each "
            f"once and with a value. {FROM_THE_ENVIRONMENT}"
        )
    return given


def _chosen(
    given: Mapping[str, str], name: str, environment: Mapping[str, str], variables: tuple[str, ...]
) -> tuple[str, str] | None:
    """Return the value and its source.

    The URI's value is used, else the value of the first variable that is not empty.
    """
    if name in given:
        return given[name], f"the parameter {name}"
    return next(((environment[each], each) for each in variables if environment.get(each)), None)


def _endpoint(text: str, place: str) -> str:
    """Return the endpoint in lower case without a final slash.

    Raises `InvalidInput` for an endpoint that is not valid in lower case without a final slash.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        shown = f"[{IPv6Address(host)}]" if ":" in host else host
    except ValueError:
        parts, host, port, shown = urlsplit(""), "", None, ""
    found = f"{parts.scheme}://{shown}" if port is None else f"{parts.scheme}://{shown}:{port}"
    is_host = ":" in host or _HOST.fullmatch(host)
    is_same = found == text.lower().removesuffix("/")  # A URL parser drops line feeds and unreadable parts.
    if parts.scheme not in ("http", "https") or not is_host or not is_same or port == 0 or _UNWRITTEN.search(text):
        raise InvalidInput(
            f"{place} is not a valid endpoint. Write http:// or https://, a host (of a-z 0-9 - .) and perhaps a port. "
            f"{FROM_THE_ENVIRONMENT}"
        )
    return found


def _region(text: str, place: str) -> str:
    if not _REGION.fullmatch(text):
        raise InvalidInput(f"{place} is not a valid region. Write the name of a region, such as eu-central-1")
    return text


def _path_style(text: str, place: str) -> bool:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise InvalidInput(f"{place}: the value is neither true nor false. Write true or false")
    return found


# Signatures (version 4) in the headers of S3 requests. `tests/unit/test_s3_sign.py` compares these signatures with the
# signatures of boto3.


UNRESERVED: Final = "-_.~"
NO_BODY: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Keys:
    """The credentials that sign a request. The credentials are never printed."""

    access: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)


def target_of(path: str, query: Mapping[str, str]) -> str:
    """Return path and query, encoded as they are sent and signed. The argument `path` is not encoded."""
    asked = "&".join(f"{quote(name, UNRESERVED)}={quote(query[name], UNRESERVED)}" for name in sorted(query))
    encoded = quote(path, "/" + UNRESERVED)
    return f"{encoded}?{asked}" if asked else encoded


class Signer:
    """A signer of requests without a body, for one region. Safe for threads. Each day's key is computed once."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._key_of: tuple[str, str, bytes] = ("", "", b"")

    def signed(
        self, method: str, target: str, headers: Mapping[str, str], *, keys: Keys, now_ms: int
    ) -> dict[str, str]:
        """Return the headers plus the headers that sign the request. The names are in lower case and include `host`."""
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ms // 1000))
        sent = {**headers, "x-amz-content-sha256": NO_BODY, "x-amz-date": at}
        if keys.token:
            sent["x-amz-security-token"] = keys.token
        names = sorted(sent)
        path, _, query = target.partition("?")
        lines = [method, path, query, *(f"{name}:{sent[name]}" for name in names), "", ";".join(names), NO_BODY]
        scope = f"{at[:8]}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
        signature = hmac.digest(self._key(at[:8], keys.secret), text.encode(), "sha256").hex()
        sent["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
        )
        return sent

    def _key(self, day: str, secret: str) -> bytes:
        known_day, known_secret, key = self._key_of
        if (known_day, known_secret) != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key_of = (day, secret, key)
        return key


_NAMES_KEYS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"})
_NAMES_PLACE = frozenset({"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"})
_NAMES_AUTHORITIES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_WITHOUT_EFFECT = frozenset(
    {"AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS", "AWS_PAGER"}
)
_SEEN_HERE = _NAMES_KEYS | _NAMES_PLACE | _WITHOUT_EFFECT | {*_NAMES_AUTHORITIES}
# These variables and these settings of a profile only choose credentials. boto3's session handles them.
_CHOOSES_KEYS = re.compile(
    "AWS_(?:DEFAULT_PROFILE|PROFILE|CONFIG_FILE|SHARED_CREDENTIALS_FILE|ROLE_ARN|ROLE_SESSION_NAME"
    "|WEB_IDENTITY_TOKEN_FILE|CREDENTIAL_EXPIRATION|STS_REGIONAL_ENDPOINTS|(?:CONTAINER|METADATA|EC2_METADATA)_[A-Z0-9_]*)",
    re.ASCII,
)
_OF_A_PROFILE = re.compile(
    "region|output|aws_[a-z_]*|role_[a-z_]*|source_profile|credential_[a-z_]*|external_id|mfa_serial|duration_seconds"
    "|web_identity_token_file|sso_[a-z_]*|cli_[a-z_]*|sts_regional_endpoints|metadata_[a-z_]*|retry_mode|max_attempts",
    re.ASCII,
)
_OTHER_REGIONS = re.compile("fips|aws-global", re.ASCII)  # boto3 replaces these region names in signatures.
_OTHER_KINDS = re.compile("--|-s3alias$|[.]mrap$", re.ASCII)
_REGION_IN_HOST = re.compile(
    "(?:us|eu|ap|sa|ca|me|af|il|mx)(?:-gov)?-(?:north|south|east|west|central)+-[0-9]", re.ASCII
)
_REGION_UNLESS_SAID = "us-east-1"
_CONFIGURED = ("~/.aws/config", "~/.aws/credentials")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The route of reads: a host, a region and credentials.

    Attributes:
        host: The host. It includes the port unless the port is the default.
        base: The part of the path before the key.
        keys: A function that returns the credentials.
        authorities: A file of certificates to trust instead of the default certificates.
    """

    is_secure: bool
    host: str
    base: str
    region: str
    keys: Callable[[], Keys | None]
    authorities: Path | None = None


def route(location: S3Location, environment: Mapping[str, str], session: Callable[[], Any]) -> Route | None:
    """Return the route to a location, or None if boto3 is needed. No request.

    Args:
        session: A function that creates botocore's session. It is called if the environment does not contain the
            credentials. Its errors are raised.
    """
    aws = {name for name in environment if name.startswith("AWS_")}
    unknown = aws - _SEEN_HERE
    if any(not _CHOOSES_KEYS.fullmatch(each) for each in unknown):
        return None
    if location.endpoint is None and aws & {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}:
        return None
    region, keys = location.region or environment.get("AWS_DEFAULT_REGION"), _keys_in(environment)
    if unknown or keys is None or _is_configured():
        resolved = session()
        if not all(_OF_A_PROFILE.fullmatch(name) for name in resolved.get_scoped_config()):
            return None
        region = region or resolved.get_config_variable("region")
        credentials = resolved.get_credentials()
        found = _route(location, region or _REGION_UNLESS_SAID, lambda: _frozen(credentials))
    else:
        found = _route(location, region or _REGION_UNLESS_SAID, lambda: keys)
    if found is None or _has_proxy(found, location.bucket):
        return None
    named = next((environment[each] for each in _NAMES_AUTHORITIES if each in environment), None)
    if named is None or not found.is_secure:
        return found
    return replace(found, authorities=Path(named)) if Path(named).is_file() else None


def _is_configured() -> bool:
    # `Path` is not used, because it raises an error if the home folder is missing or belongs to another user.
    return any(os.path.exists(os.path.expanduser(each)) for each in _CONFIGURED)  # noqa: PTH110, PTH111


def _keys_in(environment: Mapping[str, str]) -> Keys | None:
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    token = environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_SECURITY_TOKEN")
    return Keys(access, secret, token) if access and secret else None


def _frozen(credentials: Any) -> Keys | None:
    """Return the current keys. If the keys expire soon, a request to their provider renews them first."""
    if credentials is None:
        return None
    found = credentials.get_frozen_credentials()
    return Keys(found.access_key, found.secret_key, found.token)


def _route(location: S3Location, region: str, keys: Callable[[], Keys | None]) -> Route | None:
    bucket, has_dots = location.bucket, "." in location.bucket
    if _OTHER_KINDS.search(bucket) or _OTHER_REGIONS.search(region):
        return None
    if location.endpoint is None:
        if not _REGION_IN_HOST.fullmatch(region):
            return None
        # boto3 uses this host for us-east-1, unless a variable or a profile sets another host.
        name = "s3" if region == "us-east-1" else f"s3.{region}"
        is_secure, host, in_path = True, f"{name}.amazonaws.com", location.path_style or has_dots
    else:
        parts = urlsplit(location.endpoint)
        is_secure, in_path = parts.scheme == "https", location.path_style
        host = parts.netloc.removesuffix(":443" if is_secure else ":80")
        if not in_path and (has_dots or not re.search("[a-z]", host) or "[" in host):
            return None
    return Route(
        is_secure=is_secure,
        host=host if in_path else f"{bucket}.{host}",
        base=f"/{bucket}/" if in_path else "/",
        region=region,
        keys=keys,
    )


def _has_proxy(found: Route, bucket: str) -> bool:
    """Return whether boto3 would use a proxy for requests to the host of the endpoint."""
    from urllib.request import getproxies, proxy_bypass

    return ("https" if found.is_secure else "http") in getproxies() and not proxy_bypass(
        found.host.removeprefix(f"{bucket}.")
    )
