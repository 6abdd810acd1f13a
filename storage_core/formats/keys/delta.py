"""Keys below `_delta_log/`: the log of the Delta mirror, by the names that Delta gives them."""

from __future__ import annotations

import re

from storage_core.formats.keys.parsed import KeyKind, ParsedKey, exact

DELTA_PREFIX = "_delta_log/"

_NAME = re.compile(r"([0-9]{20})\.(json|checkpoint\.parquet)", re.ASCII)


def delta_commit_key(version: int) -> str:
    """Return the key of one commit of the Delta log."""
    return f"{DELTA_PREFIX}{version:020d}.json"


def delta_checkpoint_key(version: int) -> str:
    """Return the key of the checkpoint of a Delta version."""
    return f"{DELTA_PREFIX}{version:020d}.checkpoint.parquet"


def delta_hint_key() -> str:
    """Return the key of the hint that names a checkpoint."""
    return f"{DELTA_PREFIX}_last_checkpoint"


def parse_delta(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    if key == delta_hint_key():
        return ParsedKey(kind=KeyKind.DELTA_HINT, key=key)
    found = _NAME.fullmatch(parts[0]) if len(parts) == 1 else None
    if found is None:
        return None
    version = int(found[1])
    if found[2] == "json":
        return exact(key, delta_commit_key(version), ParsedKey(kind=KeyKind.DELTA_COMMIT, key=key, version=version))
    parsed = ParsedKey(kind=KeyKind.DELTA_CHECKPOINT, key=key, version=version)
    return exact(key, delta_checkpoint_key(version), parsed)
