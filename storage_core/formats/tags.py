"""Bytes of `_tags.json`, the tags of a table. Records to bytes and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.json_fields import number
from storage_core.formats.keys import tags_key, validate_tag_name

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A name for a version. Times in ms; without `expires_at_ms` it holds until it is removed.

    `id` tells apart two settings of one name to one version.
    """

    name: str
    version: int
    created_at_ms: int
    expires_at_ms: int | None
    id: str

    def is_live(self, now_ms: int) -> bool:
        """Return whether the tag still protects its version: until the moment it expires, and not at it."""
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of a table by name, expired ones included, as one object held them. `etag` is None without any."""

    by_name: Mapping[str, Tag] = field(default_factory=dict)
    counter: int = 0
    etag: str | None = None

    def live(self, now_ms: int) -> list[Tag]:
        """Return the tags that have not expired, by name."""
        return [tag for _, tag in sorted(self.by_name.items()) if tag.is_live(now_ms)]


def encode(wanted: Tags, *, nonce: str) -> bytes:
    """Return the bytes of the object to put: its counter is one higher than that of the tags. `nonce` is unique."""
    body = {
        "format": FORMAT_VERSION,
        "counter": wanted.counter + 1,
        "nonce": nonce,
        "tags": {name: _body(tag) for name, tag in sorted(wanted.by_name.items())},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def decode(data: bytes, *, etag: str | None = None) -> Tags:
    """Return the tags in these bytes. Raises `Corrupt`, or `Unsupported` for a newer format."""
    key = tags_key()
    try:
        body = json.loads(data)
        version = int(body["format"])
        if version > FORMAT_VERSION:
            raise Unsupported(f"{key}: tags of format {version}, this release reads {FORMAT_VERSION}; upgrade")
        found = [_tag(name, each) for name, each in body["tags"].items()]
        return Tags({tag.name: tag for tag in found}, int(body["counter"]), etag)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{key}: not the tags of a table: {error!r}", key=key) from error


def _body(tag: Tag) -> dict[str, object]:
    expires = {} if tag.expires_at_ms is None else {"expiresAtMs": tag.expires_at_ms}
    return {"version": tag.version, "createdAtMs": tag.created_at_ms, **expires, "id": tag.id}


def _tag(name: str, body: Mapping[str, Any]) -> Tag:
    version, expires = number(body["version"]), body.get("expiresAtMs")
    return Tag(
        name=validate_tag_name(name),
        version=version,
        created_at_ms=number(body["createdAtMs"]),
        expires_at_ms=None if expires is None else number(expires),
        id=str(body["id"]),
    )
