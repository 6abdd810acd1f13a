from __future__ import annotations

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.store.s3_location import S3Location, parse_s3_uri

ENDPOINT = "http://127.0.0.1:9000"
HIDDEN = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("uri", "environment", "expected"),
    [
        ("s3://bucket", {}, S3Location(bucket="bucket")),
        ("S3://bucket/a/b c%2F/", {}, S3Location(bucket="bucket", prefix="a/b c%2F")),
        ("s3://my.bucket/t?region=eu-central-1", {}, S3Location(bucket="my.bucket", prefix="t", region="eu-central-1")),
        (
            f"s3://bucket/t?endpoint={ENDPOINT}/",
            {},
            S3Location(bucket="bucket", prefix="t", endpoint=ENDPOINT, path_style=True),
        ),
        (
            f"s3://bucket/t?endpoint={ENDPOINT}&path_style=false",
            {"AWS_ENDPOINT_URL": "https://other", "TIDEMARK_S3_PATH_STYLE": "true"},
            S3Location(bucket="bucket", prefix="t", endpoint=ENDPOINT),
        ),
        (
            "s3://bucket/t",
            {"AWS_ENDPOINT_URL_S3": "https://[::1]:9000", "AWS_ENDPOINT_URL": "https://other", "AWS_REGION": "r-1"},
            S3Location(bucket="bucket", prefix="t", endpoint="https://[::1]:9000", region="r-1", path_style=True),
        ),
        (
            "s3://bucket/t",
            {"AWS_ENDPOINT_URL": "https://other", "AWS_DEFAULT_REGION": "r-2", "AWS_REGION": ""},
            S3Location(bucket="bucket", prefix="t", endpoint="https://other", region="r-2", path_style=True),
        ),
        (
            "s3://bucket/t",
            {"TIDEMARK_S3_PATH_STYLE": "TRUE"},
            S3Location(bucket="bucket", prefix="t", path_style=True),
        ),
    ],
)
def test_the_uri_decides_before_the_environment_and_both_before_the_default(
    uri: str, environment: dict[str, str], expected: S3Location
) -> None:
    found = parse_s3_uri(uri, environment)
    assert found == expected
    assert parse_s3_uri(found.uri, {}) == found, "the canonical URI needs no environment"


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("s3://bucket/t/", "s3://bucket/t"),
        ("s3://bucket/t?", "s3://bucket/t"),
        ("s3://bucket/?region=r-1", "s3://bucket?region=r-1"),
        (f"s3://bucket/t?region=r-1&endpoint={ENDPOINT}", f"s3://bucket/t?endpoint={ENDPOINT}&region=r-1"),
        ("s3://bucket/t?path_style=true", "s3://bucket/t?path_style=true"),
        (f"s3://bucket/t?path_style=true&endpoint={ENDPOINT}", f"s3://bucket/t?endpoint={ENDPOINT}"),
    ],
)
def test_one_place_has_one_uri(uri: str, canonical: str) -> None:
    assert parse_s3_uri(uri, {}).uri == canonical


def test_keys_live_below_the_prefix_and_come_back() -> None:
    for location in (S3Location(bucket="bucket"), S3Location(bucket="bucket", prefix="a/b")):
        assert location.table_key(location.object_key("splits/x")) == "splits/x"
    assert S3Location(bucket="bucket", prefix="a").object_key("") == "a/"
    assert S3Location(bucket="bucket").object_key("") == ""


@pytest.mark.parametrize(
    ("location", "style"),
    [
        (S3Location(bucket="bucket"), "auto"),
        (S3Location(bucket="bucket", endpoint=ENDPOINT), "virtual"),
        (S3Location(bucket="bucket", endpoint=ENDPOINT, path_style=True), "path"),
    ],
)
def test_a_bucket_is_addressed_in_the_path_or_in_the_host(location: S3Location, style: str) -> None:
    assert location.addressing_style == style


@pytest.mark.parametrize(
    "uri",
    [
        "s3://",
        "s3:///key",
        "s3://b/x",
        "s3://Bucket/x",
        "s3://bucket_/x",
        "s3://bucket:9000/x",
        "s3://bucket//x",
        "s3://bucket/../x",
        "s3://bucket/x\n",
        "s3://bucket/x#fragment",
        "s3://bucket/x?region",
        "s3://bucket/x?region=",
        "s3://bucket/x?region=a b",
        "s3://bucket/x?region=r-1&region=r-2",
        "s3://bucket/x?profile=mine",
        "s3://bucket/x?path_style=yes",
        "s3://bucket/x?endpoint=127.0.0.1:9000",
        "s3://bucket/x?endpoint=ftp://host",
        "s3://bucket/x?endpoint=http://",
        "s3://bucket/x?endpoint=http://host:port",
        "s3://bucket/x?endpoint=http://host/path",
        "s3://bucket/x?endpoint=http://under_score:9000",
        "s3://bucket/x?endpoint=http://-a",
        "s3://bucket/x?endpoint=http://a b",
        "s3://bucket/x?endpoint=http://host%3Fa=b",
    ],
)
def test_a_uri_that_names_no_place_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput):
        parse_s3_uri(uri, {})


@pytest.mark.parametrize(
    ("uri", "environment"),
    [
        (f"s3://AKIA:{HIDDEN}@bucket/x", {}),
        (f"s3://{HIDDEN}@bucket/x", {}),
        (f"s3://{HIDDEN}/x", {}),
        (f"s3://bucket/x?secret_access_key={HIDDEN}", {}),
        (f"s3://bucket/x?{HIDDEN}", {}),
        (f"s3://bucket/x?{HIDDEN}=1", {}),
        (f"s3://bucket/x?region={HIDDEN}", {}),
        (f"s3://bucket/x?path_style={HIDDEN}", {}),
        (f"s3://bucket/x?endpoint=http://user:{HIDDEN}@host", {}),
        (f"s3://bucket/x?endpoint=http://host?token={HIDDEN}", {}),
        (f"s3://bucket/x#{HIDDEN}", {}),
        ("s3://bucket/x", {"AWS_ENDPOINT_URL": f"http://user:{HIDDEN}@host"}),
        ("s3://bucket/x", {"AWS_REGION": HIDDEN}),
    ],
)
def test_what_may_be_a_secret_is_refused_and_not_repeated(uri: str, environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_s3_uri(uri, environment)
    said = f"{refused.value!r} {refused.value} {refused.value.context} {refused.value.__context__!r}"
    assert HIDDEN not in said
    assert "AKIA" not in said
