"""Where reads of a place on S3 go and as whom they are signed, when that can be told without a client of boto3.

Building boto3's client takes a third of a second, and a GET of it several times as long as the request itself. So reads
go through `s3_reader` wherever nothing else than what is modelled here decides about them. All else stays with boto3:
proxies, an AWS configuration that changes addresses or requests, any variable `AWS_…` that is not named here, buckets
of other kinds, and regions whose hosts do not end in amazonaws.com.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage_core.objectstore.s3_location import S3Location
from storage_core.objectstore.s3_sign import Keys

_NAMES_KEYS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"})
_NAMES_PLACE = frozenset({"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"})
_NAMES_AUTHORITIES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_WITHOUT_EFFECT = frozenset(
    {"AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS", "AWS_PAGER"}
)
_SEEN_HERE = _NAMES_KEYS | _NAMES_PLACE | _WITHOUT_EFFECT | {*_NAMES_AUTHORITIES}
# These choose credentials and nothing else, and so do the settings of a profile: boto3's session follows them.
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
_OTHER_REGIONS = re.compile("fips|aws-global", re.ASCII)  # under which boto3 signs for another one
_OTHER_KINDS = re.compile("--|-s3alias$|[.]mrap$", re.ASCII)
_REGION = re.compile("(?:us|eu|ap|sa|ca|me|af|il|mx)(?:-gov)?-(?:north|south|east|west|central)+-[0-9]", re.ASCII)
_REGION_UNLESS_SAID = "us-east-1"
_CONFIGURED = ("~/.aws/config", "~/.aws/credentials")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A host (with its port unless that is the usual one), what precedes keys in a path, a region, and who signs.

    `authorities` is a file of certificates to believe instead of the usual ones.
    """

    is_secure: bool
    host: str
    base: str
    region: str
    keys: Callable[[], Keys | None]
    authorities: Path | None = None


def route(location: S3Location, environment: Mapping[str, str], session: Callable[[], Any]) -> Route | None:
    """Return the way to a place; None where boto3 has to tell. No request.

    `session` makes botocore's session, which is used where the environment does not hold the credentials. Raises what
    it raises.
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
    # Not by Path, which raises where there is no home folder or it is somebody else's.
    return any(os.path.exists(os.path.expanduser(each)) for each in _CONFIGURED)  # noqa: PTH110, PTH111


def _keys_in(environment: Mapping[str, str]) -> Keys | None:
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    token = environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_SECURITY_TOKEN")
    return Keys(access, secret, token) if access and secret else None


def _frozen(credentials: Any) -> Keys | None:
    """The keys of this moment, which are fetched anew before they end. A request to who gives them, now and then."""
    if credentials is None:
        return None
    found = credentials.get_frozen_credentials()
    return Keys(found.access_key, found.secret_key, found.token)


def _route(location: S3Location, region: str, keys: Callable[[], Keys | None]) -> Route | None:
    bucket, has_dots = location.bucket, "." in location.bucket
    if _OTHER_KINDS.search(bucket) or _OTHER_REGIONS.search(region):
        return None
    if location.endpoint is None:
        if not _REGION.fullmatch(region):
            return None
        # Where boto3 sends those of us-east-1, unless a variable or a profile says other.
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
    """Whether boto3 would send the requests through a proxy, which it decides by the host of the endpoint."""
    from urllib.request import getproxies, proxy_bypass

    return ("https" if found.is_secure else "http") in getproxies() and not proxy_bypass(
        found.host.removeprefix(f"{bucket}.")
    )
