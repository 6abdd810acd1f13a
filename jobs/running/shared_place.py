"""Places that several processes see."""

from __future__ import annotations

from storage_core.errors import InvalidInput


def require_shared(uri: str) -> str:
    """Return the URI of a place that Spark tasks can see. Raises `InvalidInput` for one in the memory of a process."""
    if uri.startswith("memory:"):
        raise InvalidInput(f"{uri}: what is in memory lives in one process; Spark tasks cannot see it", uri=uri)
    return uri
