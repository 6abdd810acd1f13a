"""Tidemark compares contents to notice that a landed file was replaced by a file of equal size (decision 0008)."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import CommitConflict
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata, Txn
from storage_core.log.log import TransactionLog
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from storage_core.write.ingest.batch import IngestResult, IngestWork, execute, parse_blocks, plan
from storage_core.write.ingest.landing import (
    ContentHash,
    LandedFile,
    LandingFormat,
    LandingSpec,
    as_hex,
    content_of,
    discover,
    open_bytes,
)
from storage_core.write.ingest.progress import pending, progress
from tests.support.ids import SeededIds
from tests.support.rejected_lines import rejected_lines

SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), pa.field("id", pa.int64())])
FILE = "a.ndjson"


@dataclass(slots=True)
class Bench:
    """One table and its landing location. Each landed file gets a modification time that is one step later."""

    folder: Path
    log: TransactionLog
    ticks: int = 1_000

    @property
    def spec(self) -> LandingSpec:
        return LandingSpec(uri=str(self.folder), format="ndjson")

    def land(self, *ids: int, name: str = FILE) -> LandedFile:
        """Land a file with one row per hour from 1970 on. Files with the same number of rows have the same size."""
        rows = [f'{{"at": "1970-01-01T{hour:02}:00:00Z", "id": {number}}}' for hour, number in enumerate(ids)]
        (self.folder / name).write_text("".join(f"{row}\n" for row in rows))
        return self.touch(name)

    def touch(self, name: str = FILE) -> LandedFile:
        self.ticks += 1
        os.utime(self.folder / name, ns=(0, self.ticks * 1_000_000))
        return next(file for file in discover(self.spec) if file.path == name)

    def plan(self, *windows: int | None) -> list[IngestWork]:
        return plan(self.log.snapshot(), self.spec, discover(self.spec), windows or None)

    def execute(self, works: list[IngestWork]) -> list[IngestResult]:
        context = context_of(self.log.snapshot())
        return [
            execute(self.log.store, IngestWork.from_json(work.to_json()), context=context, ids=self.log.ids, now_ms=1)
            for work in works
        ]

    def commit(self, results: list[IngestResult]) -> None:
        if actions := [action for result in results for action in result.actions]:
            self.log.commit(self.log.snapshot(), actions, operation="INGEST")

    def ingest(self, *windows: int | None) -> list[IngestResult]:
        results = self.execute(self.plan(*windows))
        self.commit(results)
        return results

    def rows(self) -> list[int]:
        splits = self.log.snapshot().splits.values()
        tables = [read_split(self.log.store, add, ["id"]) for add in splits]
        return sorted(value for table in tables for value in table.column("id").to_pylist())

    def reasons(self) -> list[str]:
        return [each["reason"] for each in rejected_lines(self.log.store)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    log = TransactionLog(MemoryStore("table"), ids=SeededIds(7))
    config = TableConfig(time_column="at", window_seconds=3600).to_configuration()
    log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=config))
    return Bench(tmp_path, log)


def test_a_file_replaced_by_one_of_its_size_is_rejected_once_and_others_go_on(bench: Bench) -> None:
    before = content_of(bench.land(101, 102))
    bench.ingest()
    after = bench.land(201, 202)
    bench.land(301, name="b.ndjson")
    changed, other = bench.ingest()
    assert (changed.adds, other.rows_out, bench.rows()) == ((), 1, [101, 102, 301])
    (reason,) = bench.reasons()
    assert reason.startswith("the file changed after it was ingested (same size, contents ")
    assert as_hex(before) in reason
    assert as_hex(content_of(after)) in reason
    assert bench.plan() == []


def test_a_touched_file_is_read_once_more_and_then_left_alone(bench: Bench) -> None:
    bench.land(101, 102)
    bench.ingest()
    bench.touch()
    (seen,) = bench.ingest()
    assert (seen.adds, len(seen.txns), seen.rows_in) == ((), 1, 0)
    assert (bench.plan(), bench.rows(), bench.reasons()) == ([], [101, 102], [])


def test_an_untouched_file_is_never_read_again(bench: Bench) -> None:
    before = bench.land(101)
    bench.ingest()
    (bench.folder / FILE).unlink()
    assert plan(bench.log.snapshot(), bench.spec, [before]) == []


def test_a_file_replaced_between_windows_gives_no_rows_until_the_first_one_is_back(bench: Bench) -> None:
    bench.land(101, 102)
    bench.ingest(0)
    bench.land(201, 202)
    bench.ingest()
    assert (bench.rows(), len(bench.reasons()), bench.plan()) == ([101], 1, [])
    bench.land(101, 102)
    bench.ingest(3600)
    assert (bench.rows(), bench.plan()) == ([101, 102], [])


def test_another_replacement_is_rejected_again(bench: Bench) -> None:
    bench.land(101)
    bench.ingest()
    for number in (201, 301):
        bench.land(number)
        bench.ingest()
        assert bench.plan() == []
    assert (bench.rows(), len(bench.reasons())) == ([101], 2)


def test_two_first_runs_that_read_different_files_are_noticed_by_the_next(bench: Bench) -> None:
    bench.land(101, 102)
    first = bench.execute(bench.plan(0))
    bench.land(201, 202)
    second = bench.execute(bench.plan(3600))
    bench.commit(first)
    bench.commit(second)
    assert bench.rows() == [101, 202]
    bench.ingest()
    assert len(bench.reasons()) == 1
    assert bench.plan() == []


def test_two_first_runs_of_one_file_for_different_windows_are_a_conflict(bench: Bench) -> None:
    bench.land(101, 102)
    ours, theirs = bench.execute(bench.plan(0)), bench.execute(bench.plan(3600))
    bench.commit(ours)
    with pytest.raises(CommitConflict, match="Plan the other units again"):
        bench.commit(theirs)
    bench.ingest(3600)
    assert (bench.rows(), bench.plan()) == ([101, 102], [])


def test_a_file_that_is_replaced_while_it_waits_for_its_task_is_taken_by_the_next_run(bench: Bench) -> None:
    bench.land(101)
    works = bench.plan()
    bench.land(201)
    (result,) = bench.execute(works)
    assert (result.actions, list(result.rejected)) == ([], ["the file changed while it was read"])
    bench.ingest()
    assert (bench.rows(), bench.reasons()) == ([201], [])


def test_what_was_ingested_before_contents_were_recorded_is_known_by_its_size_only(bench: Bench) -> None:
    size = bench.land(101).size
    records = [Txn(appId=f"landed:{FILE}{window}", version=size) for window in ("", "@0")]
    bench.log.commit(bench.log.snapshot(), records, operation="INGEST")
    bench.touch()
    assert bench.plan() == []
    bench.land(201, 202)
    bench.ingest()
    assert f"was {size} bytes" in bench.reasons()[0]


def test_a_replaced_file_waits_for_one_ingest(bench: Bench) -> None:
    def waiting() -> list[str]:
        return [each.path for each in pending(bench.log.snapshot(), discover(bench.spec))]

    bench.land(101, 102)
    bench.ingest()
    assert waiting() == []
    bench.land(201, 202)
    assert waiting() == [FILE]
    bench.ingest(7200)
    assert len(bench.reasons()) == 1
    assert waiting() == []


def test_a_file_in_any_store_is_known_by_its_etag(bench: Bench) -> None:
    place = open_store("memory://replaced-files")
    spec = LandingSpec(uri="memory://replaced-files", format="ndjson")
    for number in (1, 2):
        place.put(FILE, b'{"at": "1970-01-01", "id": %d}\n' % number, Overwrite())
        works = plan(bench.log.snapshot(), spec, discover(spec))
        bench.commit(bench.execute(works))
    assert (bench.rows(), len(bench.reasons())) == ([1], 1)
    known = progress(bench.log.snapshot().txns, discover(spec))[FILE]
    assert (len(known.contents), len(known.replaced)) == (1, 1)


ROWS = pa.table({"at": pa.array(range(2_000), pa.timestamp("us", "UTC")), "id": pa.array(range(2_000), pa.int64())})


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(ROWS, sink, row_group_size=300)
    return sink.getvalue()


def _csv() -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(ROWS, sink)
    return sink.getvalue()


def _ndjson() -> bytes:
    return b"".join(b'{"at": "1970-01-01", "id": %d}\n' % number for number in range(2_000))


@pytest.mark.parametrize(
    ("file_format", "data"),
    [
        ("parquet", _parquet),
        ("csv", _csv),
        ("ndjson", _ndjson),
        ("ndjson", lambda: gzip.compress(_ndjson())),
        ("ndjson", lambda: gzip.compress(_ndjson()) + gzip.compress(_ndjson())),
    ],
)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_content_is_that_of_the_bytes_as_they_lie_there(
    tmp_path: Path, file_format: LandingFormat, data: Callable[[], bytes], place: str
) -> None:
    uri = str(tmp_path) if place == "local" else f"memory://content-{file_format}-{len(data())}"
    stored = data()
    open_store(uri).put("file", stored, Overwrite())
    spec = LandingSpec(uri=uri, format=file_format)
    (landed,) = discover(spec)
    content = ContentHash()
    blocks = parse_blocks(landed, spec, SCHEMA, "at", block_bytes=200_000, content=content)
    rows = sum(block.rows.num_rows for block in blocks)
    assert rows in (2_000, 4_000)
    assert content.value == content_of(landed)
    assert as_hex(content.value) == xxhash.xxh3_64_hexdigest(stored)


@given(data=st.binary(max_size=200), reads=st.lists(st.tuples(st.integers(0, 210), st.integers(-1, 90)), max_size=8))
def test_the_content_is_the_same_in_whatever_order_a_file_is_read(data: bytes, reads: list[tuple[int, int]]) -> None:
    content, file = ContentHash(), io.BytesIO(data)
    watched = content.watched(file)
    for position, size in reads:
        watched.seek(position)
        end = len(data) if size < 0 else position + size
        assert watched.read(size) == data[position:end]
    assert as_hex(content.finish(file)) == xxhash.xxh3_64_hexdigest(data)


def test_a_file_that_was_not_read_to_its_end_has_no_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (landed,) = discover(LandingSpec(uri=str(tmp_path), format="ndjson"))
    content = ContentHash()
    with suppress(ZeroDivisionError), open_bytes(landed, content) as file:
        assert file.read(1) == b"a"
        raise ZeroDivisionError
    assert content.value is None
