"""A temporary fault is `Unavailable`, never damage or invalid data, and leaves no record.

The tests replace the errors that the libraries raise, not our classes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, TidemarkError, Unavailable
from storage_core.base.limits import QueryLimits
from storage_core.data.formats.keys import ChunkKey
from storage_core.data.formats.raw_chunk import LogRecord, RawChunk, decode_chunk, encode_chunk
from storage_core.data.rows.incoming import pieces_of, table_of
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.maintain.log_check import newest_evidence
from storage_core.maintain.recovered_splits import read_found
from storage_core.maintain.table_objects import list_table
from storage_core.split.context import context_of
from storage_core.store.local import LocalStore
from storage_core.write.ingest.batch import execute, plan
from storage_core.write.ingest.landing import LandingSpec, discover
from storage_core.write.raw_log import read as raw_read
from tests.support.ids import SeededIds
from tidemark import Table

SCHEMA = pa.schema([("n", pa.int64()), ("m", pa.string())])
FAULTS = [
    pa.ArrowMemoryError("malloc of size 64 failed"),
    pa.ArrowException("Resource temporarily unavailable"),
    OSError(errno.EIO, os.strerror(errno.EIO)),
]
NAMES = ["memory", "a thread", "the disk"]
QUOTING = "(os error 12)"


def raising(error: BaseException) -> Callable[..., object]:
    def call(*_: object, **__: object) -> object:
        raise error

    return call


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_landed_parquet_file_that_cannot_be_read_now_stays_pending_and_nothing_is_recorded(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TransactionLog(LocalStore(tmp_path / "table"), ids=SeededIds(7))
    log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=TableConfig().to_configuration()))
    (tmp_path / "landing").mkdir()
    pq.write_table(pa.table({"n": [1], "m": ["a"]}), tmp_path / "landing" / "a.parquet")
    spec = LandingSpec(uri=str(tmp_path / "landing"), format="parquet")
    context = context_of(log.snapshot())
    before = [each.key for each in log.store.list("")]
    (work,) = plan(log.snapshot(), spec, discover(spec), None)
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "iter_batches", raising(fault))
        with pytest.raises(Unavailable, match=r"a\.parquet"):
            execute(log.store, work, context=context, ids=SeededIds(1), now_ms=1)
    assert [each.key for each in log.store.list("")] == before
    (work,) = plan(log.snapshot(), spec, discover(spec), None)
    assert execute(log.store, work, context=context, ids=SeededIds(1), now_ms=1).rows_out == 1


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_sound_split_that_cannot_be_read_now_is_not_lost(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_a_row(tmp_path)
    store = LocalStore(tmp_path / "t")
    inventory = list_table(store)
    (path,) = table.snapshot.splits
    assert read_found(store, inventory, path).path == path
    with monkeypatch.context() as patch:
        patch.setattr(pq, "read_metadata", raising(fault))
        with pytest.raises(Unavailable, match="split"):
            read_found(store, inventory, path)
        with pytest.raises(Unavailable, match="split"):
            newest_evidence(store, inventory, (), None)


def test_a_chunk_for_which_memory_is_lacking_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    record = LogRecord(timestamp_ms=1, table="t", operation="put", fields="{}")
    chunk = RawChunk(key=ChunkKey(segment_ms=0, writer=str(SeededIds(1).uuid()), number=1), first=1, records=(record,))
    data = encode_chunk(chunk)
    monkeypatch.setattr(fastavro, "reader", raising(MemoryError()))
    with pytest.raises(Unavailable, match="the key"):
        decode_chunk(data, "the key")


@pytest.mark.parametrize("fault", FAULTS[:2], ids=NAMES[:2])
def test_a_record_fits_also_where_memory_is_lacking(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    field = SCHEMA.field("n")
    monkeypatch.setattr(pa, "array", raising(fault))
    with pytest.raises(Unavailable, match="'n'"):
        raw_read._problem([1], field)


def test_a_value_that_quotes_the_system_does_not_fit_all_the_same() -> None:
    assert "does not fit" in (raw_read._problem([QUOTING], SCHEMA.field("n")) or "")


@pytest.mark.parametrize(
    "quoted", [QUOTING, "Too many open files", "Permission denied", "exceeded maximum execution time"]
)
def test_a_query_that_quotes_the_system_is_judged_by_what_is_wrong_with_it(quoted: str, tmp_path: Path) -> None:
    table = table_with_a_row(tmp_path)
    for wrong in (f"select nope from t where m like '%{quoted}%'", f"select '{quoted}'::int from t"):
        with pytest.raises(InvalidInput):
            table.sql(wrong)
    with pytest.raises(InvalidInput):
        table.scan(filter=f"'{quoted}'::int = n").to_arrow()


def test_rows_of_a_scan_that_fails_fail_as_the_scan_does(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "from"), SCHEMA, window=None)
    table.append(pa.table({"n": range(200_000), "m": [f"row {each}" for each in range(200_000)]}, schema=SCHEMA))
    into = Table.create(str(tmp_path / "to"), SCHEMA, window=None)
    slow = table.scan(filter="sha256(repeat(m, 2000)) = 'x'", limits=QueryLimits(seconds=0.3))
    with pytest.raises(Unavailable, match="longer than"):
        into.append(slow)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Unavailable("later"), Unavailable),
        (CommitConflict("again"), CommitConflict),
        (Corrupt("damaged"), Corrupt),
        (OSError(errno.EMFILE, "Too many open files"), Unavailable),
        (MemoryError(), Unavailable),
        (pa.ArrowMemoryError("malloc"), Unavailable),
        (ValueError(QUOTING), InvalidInput),
    ],
    ids=repr,
)
def test_a_stream_that_breaks_off_says_why(raised: Exception, expected: type[Exception]) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1], "m": ["a"]}, schema=SCHEMA)
        raise raised

    def wrapped() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches()
        except Exception as error:
            raise RuntimeError("a wrapper") from error

    for made in (batches, wrapped) if isinstance(raised, TidemarkError) else (batches,):
        with pytest.raises(expected):
            table_of(pa.RecordBatchReader.from_batches(SCHEMA, made()), SCHEMA)
        with pytest.raises(expected):
            list(pieces_of(pa.RecordBatchReader.from_batches(SCHEMA, made())))


def table_with_a_row(root: Path) -> Table:
    table = Table.create(str(root / "t"), SCHEMA, window=None)
    table.append([{"n": 1, "m": "a"}])
    return table
