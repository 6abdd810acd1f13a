"""Transactions of a state in objects of their own, as Avro columns, and what the state's root says of these. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage_core.errors import Corrupt
from storage_core.formats.avro_container import read_columns
from storage_core.formats.avro_state_schema import PROGRESS_SCHEMA
from storage_core.formats.avro_writing import Compression, require_fits, write_container


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressInfo:
    """One object of transactions that a state names: `path` below the log, entries, bytes, what appIds it may hold.

    Of several that are `in_order` no two have an appId between their bounds in common; others may hold any, and what
    they say counts more the later they are named. `kinds` are the bounds, least and greatest appId, of each kind (what
    an appId says up to its first colon) among the entries, or under `*` of all where the kinds are many.
    """

    path: str
    num_entries: int
    size_bytes: int
    in_order: bool
    kinds: Mapping[str, tuple[str, str]]

    @property
    def least(self) -> str:
        """The least appId among the entries."""
        return min(least for least, _ in self.kinds.values())

    @property
    def greatest(self) -> str:
        """The greatest appId among the entries."""
        return max(greatest for _, greatest in self.kinds.values())


ProgressRow = tuple[str, int | None, int | None]
"""AppId, version (None: pruned), and when it was recorded in ms, where known."""


def encode_progress(rows: Iterable[ProgressRow], compression: Compression = Compression.ZSTD) -> bytes:
    """Return an Avro file of the transactions in the given order. Raises `InvalidInput` as `encode_entries` does."""
    records = [{"appId": app, "version": version, "lastUpdated": at} for app, version, at in rows]
    require_fits(len(records))
    return write_container(PROGRESS_SCHEMA, records, compression)


def decode_progress(data: bytes, where: str) -> list[ProgressRow]:
    """Return the transactions of an Avro file in its order. Raises `Corrupt` naming `where`."""
    found = read_columns(data, where)
    try:
        apps = found.column("appId").cast(pa.string())
        numbers = [found.column(name).cast(pa.int64()) for name in ("version", "lastUpdated")]
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Corrupt(f"{where}: expected transactions, found other columns: {error}", key=where) from error
    if apps.null_count:
        raise Corrupt(f"{where}: a transaction without an appId", key=where)
    return list(zip(apps.to_pylist(), *(column.to_pylist() for column in numbers), strict=True))


def progress_record(info: ProgressInfo) -> dict[str, object]:
    """Return what the root of a state says of one object."""
    return {
        "path": info.path,
        "numEntries": info.num_entries,
        "sizeBytes": info.size_bytes,
        "sorted": info.in_order,
        "kinds": {kind: {"min": least, "max": most} for kind, (least, most) in sorted(info.kinds.items())},
    }


def progress_info(record: Mapping[str, Any]) -> ProgressInfo:
    """Return what the root says of one object, from its record. Raises `KeyError` where that lacks something."""
    if not record["kinds"]:
        raise KeyError("kinds")
    return ProgressInfo(
        path=record["path"],
        num_entries=record["numEntries"],
        size_bytes=record["sizeBytes"],
        in_order=record["sorted"],
        kinds={kind: (each["min"], each["max"]) for kind, each in record["kinds"].items()},
    )
