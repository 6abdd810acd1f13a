"""Bytes of `_source.json`, which says where the table is that a shallow clone shares objects with. Pure."""

from __future__ import annotations

import json

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.json_fields import text
from storage_core.formats.keys import source_key

FORMAT = 1


def encode(uri: str) -> bytes:
    """Return the bytes that name this table; equal places give equal bytes."""
    return json.dumps({"format": FORMAT, "uri": uri}, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> str:
    """Return the place of the table. Raises `Corrupt`, and `Unsupported` for a newer format."""
    key = source_key()
    try:
        body = json.loads(data)
        written, uri = body["format"], text(body["uri"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{key}: it does not say where the source of this clone is: {error}", key=key) from error
    if written != FORMAT:
        raise Unsupported(f"{key}: format {written!r}, this release reads {FORMAT}; upgrade", key=key)
    return uri
