"""Small tables for tests of the transaction log, with metadata and splits but without split files."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, IndexSegment, Metadata, Remove, Translation
from storage_core.log.deletion_vector import inline
from storage_core.log.log import TransactionLog
from storage_core.store.contract import ObjectStore
from tests.support.clock import START_MS, ManualClock
from tests.support.ids import SeededIds

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])
INDEX = IndexDefinition("words", "fulltext", ("text",))


def metadata(config: TableConfig | None = None) -> Metadata:
    """Return the metadata of a table of two columns."""
    return Metadata(
        id="5b0f3c1e-2f3a-4d52-9a52-0f6c2f7d9a11",
        schemaString=to_schema_string(SCHEMA),
        configuration=(config or TableConfig(indexes=(INDEX,))).to_configuration(),
    )


def log_on(store: ObjectStore, *, clock: ManualClock | None = None, seed: int = 0) -> TransactionLog:
    """Return a log whose clock and IDs are repeatable."""
    return TransactionLog(store, clock=clock or ManualClock(), ids=SeededIds(seed))


def split(name: str, rows: int = 1) -> Add:
    """Return the add action of a split. The log never opens the file."""
    return Add(path=f"splits/all/{name}.parquet", size=100 * rows, modificationTime=START_MS, numRecords=rows)


def full_split() -> Add:
    """Return an `Add` action with a distinct value in each field. The maps in this `Add` have unsorted keys."""
    return Add(
        path="splits/900/full.parquet",
        size=123,
        modificationTime=4,
        partitionValues={"z": "1", "a": "é"},
        dataChange=False,
        stats="{}",
        minValues={"b": "1", "a": "x"},
        maxValues={},
        numRecords=9,
        hasFooterOffsets=True,
        footerStartOffset=1,
        footerEndOffset=2,
        splitTags=("t", "s"),
        numMergeOps=3,
        docMappingRef="-Yvhbr-oYcs5ph-v",
        docMappingJson='{"test":"value"}',
        uncompressedSizeBytes=5,
        windowStart=900,
        windowSeconds=900,
        sortSchema="timestamp/V2",
        sourceId="src",
        partitionId="p",
        minRowKey='["a"]',
        maxRowKey='["b"]',
        nullCounts={"a": 1},
        columnRegexes={"a": "^x$"},
        xxh3="00000000000000ff",
        footerXxh3="00000000000000fe",
        deletionVector=inline([1, 2]),
    )


def removal(name: str) -> Remove:
    """Return the removal of this split."""
    return Remove(path=split(name).path, deletionTimestamp=START_MS)


def translation(name: str, inputs: Mapping[str, int], output: str) -> Translation:
    """Return a translation that maps all rows of the splits in `inputs` to one split.

    `inputs` maps each input split to its number of rows.
    """
    return Translation(
        path=f"_indices/_translations/{name}.map",
        inputs=tuple(inputs),
        inputRows=tuple(inputs.values()),
        outputs=(output,),
        movedRows=tuple(inputs.values()),
        size=1,
        xxh3="0",
        footerOffset=0,
    )


def segment(name: str, *covered: str) -> IndexSegment:
    """Return a segment of the table's index that covers the named splits."""
    return IndexSegment(
        index=INDEX.name,
        kind=INDEX.kind,
        path=f"_indices/{INDEX.name}/{name}.seg",
        covers=tuple(split(each).path for each in covered),
        size=10,
        xxh3="0" * 16,
        footerOffset=0,
        numRecords=len(covered),
    )
