"""The checksum of a JSON object, which objects that are JSON carry of everything else in them as `xxh3`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash


def json_digest(body: Mapping[str, Any]) -> str:
    """Return the xxh3-64, as 16 hex digits, of the object's compact ASCII text with sorted keys.

    Equal objects give equal digests, whatever order and spaces their text has.
    """
    return xxhash.xxh3_64_hexdigest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
