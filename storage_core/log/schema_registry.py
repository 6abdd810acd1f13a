"""Schema registry of the log: one copy of each mapping, addressed by a hash of its canonical form.

`add.docMappingRef` holds the hash, `metaData.configuration` the text under `docMappingSchema.<hash>`. Tables written by
others also use the bare hash as the key; both are read, only the prefixed form is written.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import cast

PREFIX = "docMappingSchema."
HASH_LENGTH = 16
RENORMALIZE_ABOVE = 5


def canonical(text: str) -> str:
    """Return the canonical form of a JSON text; text that does not parse is its own canonical form.

    Object keys are sorted at every depth, arrays whose every element is an object with `name` are stably sorted by
    it, and the result is compact and not escaped to ASCII.
    """
    try:
        return json.dumps(_ordered(json.loads(text)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def schema_hash(text: str) -> str:
    """Return the registry hash: 16 characters of URL-safe base64 over the SHA-256 of the canonical form."""
    digest = hashlib.sha256(canonical(text).encode()).digest()
    return base64.urlsafe_b64encode(digest).decode()[:HASH_LENGTH]


def registry(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return every registered schema by its bare hash, sorted by hash."""
    found = {key.removeprefix(PREFIX): value for key, value in configuration.items() if key.startswith(PREFIX)}
    return dict(sorted(found.items()))


def with_registry(configuration: Mapping[str, str], registered: Mapping[str, str]) -> dict[str, str]:
    """Return `configuration` completed with schemas that a state carries beside it; keys bare or prefixed."""
    found = dict(configuration)
    for key, value in registered.items():
        found.setdefault(PREFIX + key.removeprefix(PREFIX), value)
    return found


def renames(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return which registered hashes a checkpoint replaces by which: those that are not the hash of their own schema.

    Schemas that differ only in the order of their JSON become one that way. Empty up to five registered schemas: they
    cost too little to write every entry anew.
    """
    registered = registry(configuration)
    if len(registered) <= RENORMALIZE_ABOVE:
        return {}
    return {found: wanted for found, text in registered.items() if (wanted := schema_hash(text)) != found}


def renormalized(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration with every registered schema once, in canonical form, under the hash of it."""
    others = {key: value for key, value in configuration.items() if not key.startswith(PREFIX)}
    return others | {PREFIX + schema_hash(text): canonical(text) for text in registry(configuration).values()}


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: _ordered(each) for key, each in value.items()}
    if isinstance(value, list):
        elements = [_ordered(each) for each in value]
        if all(isinstance(each, dict) and "name" in each for each in elements):
            return sorted(cast("list[dict[str, object]]", elements), key=_name)
        return elements
    return value


def _name(element: Mapping[str, object]) -> str:
    name = element["name"]
    return name if isinstance(name, str) else json.dumps(name, sort_keys=True)
