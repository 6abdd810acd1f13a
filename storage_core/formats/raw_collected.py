"""Bytes of `live/collected.json`: up to which chunk of each writer a raw log was collected.

Numbers up to it that are not listed were collected, and are no gap. Records to bytes and back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.raw_keys import COLLECTED_KEY, MAX_NUMBER

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Of one writer: the last chunk that may have been collected, its last record, and when that was noted (ms)."""

    number: int
    sequence: int
    at_ms: int


def encode(writers: Mapping[str, Collected], *, nonce: str) -> bytes:
    """Return the bytes of the object, in the order of the writers. `nonce` is unique."""
    body = {
        "format": FORMAT_VERSION,
        "nonce": nonce,
        "writers": {writer: asdict(writers[writer]) for writer in sorted(writers)},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def decode(data: bytes) -> dict[str, Collected]:
    """Return what the bytes say, by writer. Raises `Corrupt`, or `Unsupported` for a newer format."""
    try:
        body = json.loads(data)
        version = int(body["format"])
        if version > FORMAT_VERSION:
            raise Unsupported(f"{COLLECTED_KEY}: format {version}, this release reads {FORMAT_VERSION}; upgrade")
        found = {
            str(writer): Collected(**{name: int(value) for name, value in each.items()})
            for writer, each in body["writers"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{COLLECTED_KEY}: damaged: {error!r}", key=COLLECTED_KEY) from error
    if not all(0 <= each.number <= MAX_NUMBER and 0 <= each.sequence <= MAX_NUMBER for each in found.values()):
        raise Corrupt(f"{COLLECTED_KEY}: damaged: a number is out of range", key=COLLECTED_KEY)
    return found
