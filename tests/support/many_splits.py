"""Snapshots of thousands of splits, built as Arrow tables. No file and no log record of these splits exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Txn
from storage_core.log.checkpoint_writing import manifest_info, write_checkpoint
from storage_core.log.live_splits import ListedFiles, LiveFiles, Part
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import FILES_SCHEMA
from storage_core.store.local import LocalStore
from tests.support.events import CONFIG, HOUR_SECONDS, snapshot

SPLIT_BYTES = 10_000_000


def snapshot_of_many(
    splits: int, windows: int, *, partitions: int = 0, configuration: Mapping[str, str] | None = None
) -> Snapshot:
    """Return a snapshot of the events table with many splits. Each commit adds one split to each window.

    `partitions` is the number of values of `service` in each window. Each split has the statistics, row keys and
    expressions of a real split.
    """
    head = snapshot([], timestamp=splits * 1000)
    own = TableConfig(partition_by=("service",) if partitions else ()).to_configuration()
    settings = {**head.metadata.configuration, **own, **(configuration or {})}
    head = replace(head, metadata=replace(head.metadata, configuration=settings))
    files = _files(splits, windows)
    return with_splits(head, _partitioned(files, windows, partitions) if partitions else files)


def table_of_many(root: Path, *, splits: int, windows: int) -> TransactionLog:
    """Return the log of a table at `root`. The state of version 1 lists splits that have no files."""
    many = snapshot_of_many(splits, windows)
    settings = TableConfig(checkpoint_interval=0).to_configuration() | {"tidemark.retentionMs": "1"}
    log = TransactionLog(LocalStore(root))
    made = log.create(replace(many.metadata, configuration={**many.metadata.configuration, **settings}))
    head = log.commit(made, [Txn(appId="first", version=1)], operation="FIRST").snapshot
    write_checkpoint(log.store, with_splits(head, many.splits.table()), log.ids.uuid, compact=True)
    return log


def with_splits(head: Snapshot, *tables: pa.Table) -> Snapshot:
    """Return the snapshot `head` with new live splits. Each row of the Arrow tables `tables` describes one split.

    The snapshot looks as if the state of `head` had one manifest for each of the Arrow tables.
    """
    parts = tuple(Part.of(manifest_info("", files, head), files) for files in tables)
    live = sum(len(files) for files in tables)
    return replace(head, splits=LiveFiles(ListedFiles(0, parts, frozenset(), live, 0)))


def _files(splits: int, windows: int) -> pa.Table:
    number = np.arange(splits)
    start = number % windows * HOUR_SECONDS
    text = pc.utf8_lpad(pc.cast(pa.array(number * 2_654_435_761 % 2**32), pa.string()), 32, "0")
    path = pc.binary_join_element_wise("splits/", pc.cast(pa.array(start), pa.string()), "/", text, ".parquet", "")
    none = pa.array(np.zeros(splits, np.int64))
    columns = {
        "path": path,
        "size": pc.add(none, SPLIT_BYTES),
        "modificationTime": pa.array(number),
        "dataChange": pa.array(np.ones(splits, np.bool_)),
        "minValues": _maps("host", text),
        "maxValues": _maps("host", text),
        "numRecords": pc.add(none, 1000),
        "numMergeOps": pc.cast(none, pa.int32()),
        "addedAtVersion": pa.array(number // windows),
        "addedAtTimestamp": pa.array(number // windows),
        "windowStart": pa.array(start),
        "windowSeconds": pc.add(none, HOUR_SECONDS),
        "sortSchema": pa.repeat(pa.scalar(CONFIG.sort_schema), splits),
        "minRowKey": pc.binary_join_element_wise('["api","', text, '"]', ""),
        "maxRowKey": pc.binary_join_element_wise('["web","', text, '"]', ""),
        "xxh3": pa.repeat(pa.scalar("0" * 16), splits),
        "columnRegexes": _maps("service", pa.repeat(pa.scalar("^(?:api|web)$"), splits)),
    }
    arrays = [columns[each.name] if each.name in columns else pa.nulls(splits, each.type) for each in FILES_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=FILES_SCHEMA)


def _partitioned(files: pa.Table, windows: int, partitions: int) -> pa.Table:
    """Assign the splits of each window to the partitions in turn."""
    number = pc.utf8_lpad(pc.cast(pa.array(np.arange(len(files)) // windows % partitions), pa.string()), 6, "0")
    folder = pc.binary_join_element_wise("service=", number, "")
    columns = {
        "path": pc.binary_join_element_wise(folder, files.column("path").combine_chunks(), "/"),
        "partitionValues": _maps("service", number),
        "partitionId": folder,
    }
    for name, values in columns.items():
        files = files.set_column(FILES_SCHEMA.get_field_index(name), FILES_SCHEMA.field(name), values)
    return files


def _maps(key: str, values: pa.Array) -> pa.MapArray:
    """Return a map with one key per value."""
    offsets = pa.array(np.arange(len(values) + 1), pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.repeat(pa.scalar(key), len(values)), values)
