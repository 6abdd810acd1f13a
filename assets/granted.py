"""What a run may read of each of its tables: the tag by which the upkeep sensor grants it and counts it afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping

from assets.run_tags import BYTES_TAG


def bytes_tag(granted: Mapping[str, int]) -> dict[str, str]:
    """Return the tag of a run that was granted so many bytes of each table; none where nothing was granted."""
    return {BYTES_TAG: json.dumps(granted, separators=(",", ":"))} if granted else {}


def granted_bytes(tags: Mapping[str, str]) -> dict[str, int]:
    """Return what a run was granted, by table. A tag that somebody else wrote grants nothing and counts nothing."""
    try:
        found = json.loads(tags.get(BYTES_TAG, "{}"))
        return {str(name): int(size) for name, size in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
