"""Bytes of `_gc/boundary.json`, the first version that may exist. Records to bytes and back."""

from __future__ import annotations

import json

from storage_core.errors import Corrupt
from storage_core.formats.keys import gc_boundary_key


def encode(first_version: int, *, nonce: str) -> bytes:
    """Return the bytes of a boundary. `nonce` is unique."""
    return json.dumps({"firstVersion": first_version, "nonce": nonce}, separators=(",", ":")).encode()


def decode(data: bytes) -> int:
    """Return the first version. Raises `Corrupt`: it is the only record of what was deleted."""
    try:
        return int(json.loads(data)["firstVersion"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{gc_boundary_key()}: not a boundary: {error}", key=gc_boundary_key()) from error
