"""Where a store on S3 is: bucket and prefix from the URI, endpoint, region and path style from the URI or environment.

    s3://bucket/prefix?endpoint=https://host:9000&region=eu-central-1&path_style=true

| Part | In the URI | Else in the environment | Else |
|---|---|---|---|
| endpoint | `endpoint` | `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` | Amazon's |
| region | `region` | `AWS_REGION`, `AWS_DEFAULT_REGION` | that of the profile, `us-east-1` |
| path style | `path_style` | `TIDEMARK_S3_PATH_STYLE` | true with an endpoint |

Credentials are no part of a location: they come from boto3's own chain, and a URI that holds some is refused without
being repeated (docs/architecture/lessons.md, lesson 85).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from storage_core.errors import InvalidInput
from storage_core.objectstore.key_safety import is_safe_key

USERINFO = re.compile(r"(?:^|/)[^/]*:[^/]*@")
"""What looks like a name and a password before a host, anywhere in a path."""
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
FROM_THE_ENVIRONMENT = "credentials come from the environment or the AWS configuration, never from a URI"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A prefix of a bucket and how to reach it; holds no secret. `prefix` is empty or a key without a slash at its end.

    `endpoint` None is Amazon's own, `region` None that of the profile.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False

    @property
    def uri(self) -> str:
        """The canonical URI with what came from the environment, so that another process reaches the same place."""
        path = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        parameters = {"endpoint": self.endpoint, "region": self.region}
        if self.path_style != (self.endpoint is not None):
            parameters["path_style"] = str(self.path_style).lower()
        query = urlencode({name: value for name, value in parameters.items() if value is not None}, safe="/:")
        return f"{path}?{query}" if query else path

    @property
    def addressing_style(self) -> Literal["path", "virtual", "auto"]:
        """What boto3 calls it. At Amazon's own endpoint it decides by itself: a name with dots needs path style."""
        if self.path_style:
            return "path"
        return "auto" if self.endpoint is None else "virtual"

    def object_key(self, key: str) -> str:
        """Return the name in the bucket of a table-relative key or prefix."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def table_key(self, object_key: str) -> str:
        """Return the table-relative key of a name in the bucket that `object_key` made."""
        return object_key[len(self.object_key("")) :]


def parse_s3_uri(uri: str, environment: Mapping[str, str]) -> S3Location:
    """Return the place that the URI names, completed from the environment.

    Raises `InvalidInput` for what is no bucket or prefix, an unknown, doubled or empty parameter, and whatever looks
    like credentials; the message repeats neither these nor the URI.
    """
    rest = uri.split("://", 1)[1]
    path, _, query = rest.partition("?")
    bucket, _, prefix = path.partition("/")
    if "@" in bucket or USERINFO.search(path):
        raise InvalidInput(f"s3://…@…: {FROM_THE_ENVIRONMENT}; write s3://bucket/prefix")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise InvalidInput("expected s3://bucket/prefix with a bucket name of 3 to 63 of a-z 0-9 . - in the URI")
    prefix = prefix.removesuffix("/")
    if "#" in rest or path.endswith("//") or (prefix and not is_safe_key(prefix)):
        raise InvalidInput(f"s3://{bucket}/…: the prefix holds '#', or is no path without '.', '..' and empty segments")
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
            f"s3://{bucket}/…: of parameters a URI takes {', '.join(_PARAMETERS)}, each once and with a value; "
            f"{FROM_THE_ENVIRONMENT}"
        )
    return given


def _chosen(
    given: Mapping[str, str], name: str, environment: Mapping[str, str], variables: tuple[str, ...]
) -> tuple[str, str] | None:
    """The value and where it stands: the URI's, else that of the first variable that is set and not empty."""
    if name in given:
        return given[name], f"the parameter {name}"
    return next(((environment[each], each) for each in variables if environment.get(each)), None)


def _endpoint(text: str, place: str) -> str:
    """Return the endpoint in lower case and without a slash at its end; what would change otherwise is refused."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        shown = f"[{IPv6Address(host)}]" if ":" in host else host
    except ValueError:
        parts, host, port, shown = urlsplit(""), "", None, ""
    found = f"{parts.scheme}://{shown}" if port is None else f"{parts.scheme}://{shown}:{port}"
    is_host = ":" in host or _HOST.fullmatch(host)
    is_same = found == text.lower().removesuffix("/")  # a URL parser drops line feeds, and what it cannot read
    if parts.scheme not in ("http", "https") or not is_host or not is_same or port == 0 or _UNWRITTEN.search(text):
        raise InvalidInput(
            f"{place}: expected http:// or https://, a host (of a-z 0-9 - .) and perhaps a port; {FROM_THE_ENVIRONMENT}"
        )
    return found


def _region(text: str, place: str) -> str:
    if not _REGION.fullmatch(text):
        raise InvalidInput(f"{place}: expected the name of a region, such as eu-central-1")
    return text


def _path_style(text: str, place: str) -> bool:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise InvalidInput(f"{place}: expected true or false")
    return found
