"""Avro containers of a log as bytes: the same records give the same bytes. Pure."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from storage_core.errors import InvalidInput

if TYPE_CHECKING:
    from fastavro.types import Schema

MAX_ENTRIES_PER_MANIFEST = 50_000


class Compression(StrEnum):
    """How blocks of manifests and states are compressed; every one is always read."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


_CODECS: Mapping[Compression, tuple[str, int | None]] = {
    Compression.ZSTD: ("zstandard", 3),
    Compression.SNAPPY: ("snappy", None),
    Compression.NONE: ("null", None),
}
# Large blocks: fewer to check on the way in, and better compressed than by the library's default of 16 kB.
_BLOCK_BYTES = 256 * 2**10
_SYNC_MARKER = hashlib.sha256(b"tidemark state").digest()[:16]


def require_fits(count: int) -> None:
    """Raise `InvalidInput` for more entries than one object of a state may hold."""
    if count > MAX_ENTRIES_PER_MANIFEST:
        raise InvalidInput(
            f"a manifest holds at most {MAX_ENTRIES_PER_MANIFEST:,} entries, found {count:,}; write several"
        )


def write_container(
    schema: Schema,
    records: Sequence[Mapping[str, object]],
    compression: Compression,
    header: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return a container of the records, the keys of `header` in its header."""
    import fastavro

    codec, level = _CODECS[compression]
    target = io.BytesIO()
    fastavro.writer(
        target,
        schema,
        records,
        codec=codec,
        codec_compression_level=level,
        sync_interval=_BLOCK_BYTES,
        sync_marker=_SYNC_MARKER,
        metadata=dict(header),
    )
    return target.getvalue()
