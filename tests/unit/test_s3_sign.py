"""Signatures equal those of boto3 for the same requests."""

from __future__ import annotations

import datetime as dt

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from storage_core.store.s3_location import Keys, Signer, target_of

HOST = "h.example:9000"


@pytest.mark.parametrize("token", [None, "", "session/token+=="])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/bucket/k", {}),
        ("/bucket/a%2Fb/ä €/x y+z~'()*!&=?#:@,;$", {}),
        ("/bucket", {"list-type": "2", "prefix": "a/ä &+=%/", "continuation-token": "1/b=+", "start-after": ""}),
    ],
)
def test_a_signature_is_the_one_that_boto3_makes(
    method: str, path: str, query: dict[str, str], token: str | None
) -> None:
    target = target_of(path, query)
    request = AWSRequest(method, f"http://{HOST}{target}", {"range": "bytes=0-1"})
    S3SigV4Auth(Credentials("access", "secret", token), "s3", "eu-central-1").add_auth(request)
    at = dt.datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    signed = Signer("eu-central-1").signed(
        method,
        target,
        {"host": HOST, "range": "bytes=0-1"},
        keys=Keys("access", "secret", token),
        now_ms=int(at.timestamp() * 1000) + 999,
    )
    assert {**signed, "host": HOST} == {**{n.lower(): v for n, v in request.headers.items()}, "host": HOST}


def test_another_day_and_another_secret_have_another_key() -> None:
    signer = Signer("eu-central-1")
    days = (0, 86_400_000, 86_400_000, 0)
    secrets = ("a", "a", "b", "a")
    found = [
        signer.signed("GET", "/k", {"host": HOST}, keys=Keys("x", secret), now_ms=day)["authorization"]
        for day, secret in zip(days, secrets, strict=True)
    ]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_keys_show_nothing_of_themselves() -> None:
    assert repr(Keys("access", "secret", "token")) == "Keys()"
