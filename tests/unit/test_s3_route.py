"""A route leads to the address that boto3 would use, or the request is left to boto3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError, ProfileNotFound
from botocore.session import Session

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.store.s3_calls import Retries, S3Calls
from storage_core.store.s3_location import Keys, Route, S3Location, parse_s3_uri, route, target_of

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret"}
PLAIN = "s3://bucket/x?endpoint=http://h.example:9000&region=eu-central-1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home folder without AWS configuration, and an environment with only AWS keys."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


def not_needed() -> Any:
    raise AssertionError("boto3 was asked, and the environment says everything")


def sent_by_boto3(location: S3Location) -> tuple[str, str]:
    """Return the address of a GET as boto3 would send it, and its signing region."""
    calls = S3Calls(location, Retries(attempts=1), clock=SystemClock(), ids=SystemIds())
    seen: list[Any] = []

    def keep(request: Any, **_: object) -> None:
        seen.append(request)
        raise NoCredentialsError

    calls._connected().meta.events.register("before-send.s3", keep)
    calls.once(lambda client: client.get_object(Bucket=location.bucket, Key="a b/ä+"))
    (request,) = seen
    return str(request.url), request.headers["Authorization"].decode().split("/")[2]


@pytest.mark.parametrize(
    "uri",
    [
        PLAIN,
        "s3://bucket/x?endpoint=https://h.example&region=r-1",
        "s3://bucket/x?endpoint=http://127.0.0.1:9000&region=eu-central-1",
        "s3://bucket/x?endpoint=http://[::1]:9000&region=eu-central-1",
        "s3://bucket/x?endpoint=http://h.example:9000&region=eu-central-1&path_style=false",
        "s3://buc.ket/x?endpoint=http://h.example:9000&region=eu-central-1",
        "s3://bucket/x?region=eu-central-1",
        "s3://bucket/x?region=us-east-1",
        "s3://bucket/x?region=us-east-1&path_style=true",
        "s3://bucket/x?endpoint=http://h.example:9000",
        "s3://bucket/x",
        "s3://bucket/x?region=us-gov-west-1",
        "s3://bucket/x?region=ap-southeast-4",
        "s3://bucket/x?region=eu-central-1&path_style=true",
        "s3://buc.ket/x?region=eu-central-1",
    ],
)
def test_requests_go_where_boto3_sends_them(uri: str) -> None:
    location = parse_s3_uri(uri, {})
    found = route(location, ENVIRONMENT, not_needed)
    assert found is not None
    scheme = "https" if found.is_secure else "http"
    address = f"{scheme}://{found.host}{target_of(found.base + 'a b/ä+', {})}"
    assert (address, found.region) == sent_by_boto3(location)
    assert found.keys() == Keys("access", "secret", None)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/x?region=us-iso-east-1",
        "s3://bucket/x?region=cn-north-1",
        "s3://bucket--euc1-az1--x-s3/x?region=eu-central-1",
        "s3://alias-s3alias/x?region=eu-central-1",
        "s3://bucket/x?endpoint=http://127.0.0.1:9000&region=eu-central-1&path_style=false",
        "s3://buc.ket/x?endpoint=http://h.example:9000&region=eu-central-1&path_style=false",
        "s3://bucket/x?endpoint=http://h.example:9000&region=aws-global",
        "s3://bucket/x?endpoint=http://h.example:9000&region=fips-us-east-1",
        "s3://bucket/x?endpoint=http://h.example:9000&region=us-east-1-fips",
    ],
)
def test_places_of_other_kinds_are_left_to_boto3(uri: str) -> None:
    assert route(parse_s3_uri(uri, {}), ENVIRONMENT, not_needed) is None


@pytest.mark.parametrize(
    "more",
    [
        {"AWS_USE_FIPS_ENDPOINT": "true"},
        {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
        {"AWS_OF_A_LATER_VERSION": "x"},
    ],
)
def test_an_environment_that_says_more_is_left_to_boto3(more: dict[str, str]) -> None:
    assert route(parse_s3_uri(PLAIN, {}), {**ENVIRONMENT, **more}, not_needed) is None


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_authorities_are_those_that_the_environment_names(home: Path, name: str) -> None:
    file = home / "authorities.pem"
    file.touch()
    secure = parse_s3_uri("s3://bucket/x?region=eu-central-1", {})
    found = route(secure, {**ENVIRONMENT, name: str(file)}, not_needed)
    assert found is not None
    assert found.authorities == file
    assert route(secure, {**ENVIRONMENT, name: str(home / "none")}, not_needed) is None
    assert route(parse_s3_uri(PLAIN, {}), {**ENVIRONMENT, name: str(home / "none")}, not_needed) is not None


def test_an_endpoint_that_only_the_environment_names_now_is_left_to_boto3() -> None:
    location = parse_s3_uri("s3://bucket/x?region=eu-central-1", {})
    assert route(location, {**ENVIRONMENT, "AWS_ENDPOINT_URL": "http://h.example"}, not_needed) is None


def test_a_proxy_is_left_to_boto3_unless_it_is_not_for_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    location = parse_s3_uri(PLAIN, {})
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert route(location, ENVIRONMENT, not_needed) is not None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert route(location, ENVIRONMENT, not_needed) is None
    monkeypatch.setenv("no_proxy", "h.example")
    assert route(location, ENVIRONMENT, not_needed) is not None


def test_a_proxy_is_for_the_endpoint_whatever_is_said_of_the_host_of_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = parse_s3_uri("s3://bucket/x?region=eu-central-1", {})
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "bucket.s3.eu-central-1.amazonaws.com")
    assert route(location, ENVIRONMENT, not_needed) is None
    monkeypatch.setenv("no_proxy", "s3.eu-central-1.amazonaws.com")
    assert route(location, ENVIRONMENT, not_needed) is not None


def test_an_account_without_a_home_folder_has_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # a container may have a user id without an account
    assert route(parse_s3_uri(PLAIN, {}), ENVIRONMENT, not_needed) is not None


def test_the_name_of_a_service_that_runs_the_process_changes_nothing() -> None:
    environment = {**ENVIRONMENT, "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE"}
    assert route(parse_s3_uri(PLAIN, {}), environment, not_needed) is not None


def test_a_profile_with_an_empty_name_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "")
    with pytest.raises(ProfileNotFound):
        route(parse_s3_uri(PLAIN, {}), {**ENVIRONMENT, "AWS_PROFILE": ""}, Session)


def configured(home: Path, config: str, credentials: str = "") -> Route | None:
    (home / ".aws" / "config").write_text(config, encoding="utf-8")
    (home / ".aws" / "credentials").write_text(credentials, encoding="utf-8")
    return route(parse_s3_uri("s3://bucket/x", {}), {"AWS_PROFILE": "here"}, Session)


def test_a_profile_names_region_and_keys(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "here")
    keys = "[here]\naws_access_key_id = of profile\naws_secret_access_key = its secret\naws_session_token = its token\n"
    found = configured(home, "[profile here]\nregion = eu-west-3\n", keys)
    assert found is not None
    assert (found.host, found.region) == ("bucket.s3.eu-west-3.amazonaws.com", "eu-west-3")
    assert found.keys() == Keys("of profile", "its secret", "its token")


@pytest.mark.parametrize("setting", ["s3 =\n  use_accelerate_endpoint = true", "endpoint_url = http://o.example"])
def test_a_profile_that_changes_requests_is_left_to_boto3(
    home: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "here")
    assert configured(home, f"[profile here]\nregion = eu-west-3\n{setting}\n") is None


def test_without_keys_anywhere_there_are_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    assert (home / ".aws").is_dir()
    found = route(parse_s3_uri(PLAIN, {}), {"AWS_EC2_METADATA_DISABLED": "true"}, Session)
    assert found is not None
    assert found.keys() is None
