"""Signatures of requests to S3, version 4, in headers; `tests/unit/test_s3_sign.py` compares them with boto3's."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

UNRESERVED: Final = "-_.~"
NO_BODY: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Keys:
    """Who signs. It shows nothing of itself."""

    access: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)


def target_of(path: str, query: Mapping[str, str]) -> str:
    """Return path and query as they are sent and signed. `path` is not encoded yet."""
    asked = "&".join(f"{quote(name, UNRESERVED)}={quote(query[name], UNRESERVED)}" for name in sorted(query))
    encoded = quote(path, "/" + UNRESERVED)
    return f"{encoded}?{asked}" if asked else encoded


class Signer:
    """Signs requests without a body for one region. Safe for threads; the key of the day is computed once."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._key_of: tuple[str, str, bytes] = ("", "", b"")

    def signed(
        self, method: str, target: str, headers: Mapping[str, str], *, keys: Keys, now_ms: int
    ) -> dict[str, str]:
        """Return the headers with what makes them a signed request. Names are in lower case, `host` is among them."""
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
