"""The body of a lease object, `_locks/<resource>.json` (docs/architecture/ingestion.md, "Leases"): bytes to records and
back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.json_fields import number, text
from storage_core.formats.keys import lock_key

FORMAT_VERSION = 1
RELEASED_MS = 0
"""The expiry of a released lease: in the past of every clock, however wrong the clock of its releaser is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who holds a resource under which token, and until when. Times in ms by the holder's clock.

    `nonce` is `<uuid of the acquisition>.<number of the write>`: no two bodies are equal (lesson 09), and two
    acquisitions are told apart even where somebody lost the object and both got one token.
    """

    resource: str
    holder: str
    fencing_token: int
    acquired_at_ms: int
    expires_at_ms: int
    nonce: str

    @property
    def acquisition(self) -> str:
        """The id of the acquisition that wrote this body."""
        return self.nonce.partition(".")[0]

    def is_live(self, now_ms: int) -> bool:
        """Return whether the holder still has the resource at `now_ms`: until the moment it expires, not at it."""
        return now_ms < self.expires_at_ms


def encode(record: LeaseRecord) -> bytes:
    """Return the bytes that `decode` reads back as this record."""
    body = {
        "format": FORMAT_VERSION,
        "resource": record.resource,
        "holder": record.holder,
        "fencing_token": record.fencing_token,
        "acquired_at": record.acquired_at_ms,
        "expires_at": record.expires_at_ms,
        "nonce": record.nonce,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def decode(data: bytes, key: str) -> LeaseRecord:
    """Return the lease that lies at `key`.

    Raises `Corrupt` for anything else, also for the lease of another resource, and `Unsupported` for a newer format.
    """
    try:
        body = json.loads(data)
        if number(body["format"]) > FORMAT_VERSION:
            raise Unsupported(f"{key}: lease of format {body['format']}, this release reads {FORMAT_VERSION}; upgrade")
        record = LeaseRecord(
            resource=text(body["resource"]),
            holder=text(body["holder"]),
            fencing_token=number(body["fencing_token"]),
            acquired_at_ms=number(body["acquired_at"]),
            expires_at_ms=number(body["expires_at"]),
            nonce=text(body["nonce"]),
        )
        _require(lock_key(record.resource) == key, f"it is the lease of {record.resource!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{key}: not a lease: {error!r}; its last token is unknown, so no job takes it over",
            advice="break it: see `Held` in docs/operations.md",
            key=key,
        ) from error
    return record


def _require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 -- a condition and what it means
    if not condition:
        raise ValueError(otherwise)
