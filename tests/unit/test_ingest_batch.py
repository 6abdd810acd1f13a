from __future__ import annotations

import gzip
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.maintain.audit import audit
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.local import LocalStore
from storage_core.write.ingest.batch import IngestResult, IngestWork, execute, plan
from storage_core.write.ingest.convert import BLOCK_BYTES, MOST_REASONS, OTHERS, tally
from storage_core.write.ingest.landing import LandingSpec, discover
from storage_core.write.ingest.progress import pending, progress, window_app
from tests.support.ids import SeededIds
from tests.support.rejected_lines import rejected_lines

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("id", pa.int64()),
        pa.field("v", pa.string()),
    ]
)
HOUR = 3600


@dataclass
class Bench:
    """One table, one landing location."""

    root: Path
    log: TransactionLog
    spec: LandingSpec
    ids: SeededIds

    def land(self, name: str, rows: list[tuple[int, int]], *, extra: str = "") -> None:
        lines = [f'{{"at": "1970-01-01T{s // HOUR:02}:{s // 60 % 60:02}:{s % 60:02}Z", "id": {i}}}\n' for s, i in rows]
        path = self.root / "landing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines) + extra)

    def plan(self, windows: Collection[int | None] | None = None) -> list[IngestWork]:
        return plan(self.log.snapshot(), self.spec, discover(self.spec), windows)

    def execute(self, works: list[IngestWork], block_bytes: int = BLOCK_BYTES) -> list[IngestResult]:
        context = context_of(self.log.snapshot())
        results = []
        for work in works:
            travelled = IngestWork.from_json(work.to_json())
            assert travelled == work
            result = execute(
                self.log.store, travelled, context=context, ids=self.ids, now_ms=1, block_bytes=block_bytes
            )
            assert IngestResult.from_json(result.to_json()) == result
            results.append(result)
        return results

    def commit(self, results: list[IngestResult]) -> bool:
        actions = [action for result in results for action in result.actions]
        if not actions:
            return False
        return not self.log.commit(self.log.snapshot(), actions, operation="INGEST").already_committed

    def ingest(self, windows: Collection[int | None] | None = None) -> list[IngestResult]:
        results = self.execute(self.plan(windows))
        self.commit(results)
        return results

    def rows(self) -> list[int]:
        snapshot = self.log.snapshot()
        tables = [read_split(self.log.store, add, ["id"]) for add in snapshot.splits.values()]
        return sorted(value for table in tables for value in table.column("id").to_pylist())

    def quarantine(self) -> list[tuple[str, int | None, str]]:
        return [(each["source"], each["line"], each["reason"]) for each in rejected_lines(self.log.store)]


def landed(result: IngestResult) -> list[str]:
    """Return the records of ingested files, without the records of their content."""
    return [txn.appId for txn in result.txns if not txn.appId.startswith("content:")]


def make_bench(root: Path, config: TableConfig, schema: pa.Schema = SCHEMA) -> Bench:
    log = TransactionLog(LocalStore(root / "table"), ids=SeededIds(7))
    log.create(Metadata(id="t", schemaString=to_schema_string(schema), configuration=config.to_configuration()))
    return Bench(root, log, LandingSpec(uri=str(root / "landing"), format="ndjson"), SeededIds(1))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path, TableConfig(time_column="at", window_seconds=HOUR))


def test_a_file_that_straddles_windows_becomes_one_split_per_window(bench: Bench) -> None:
    bench.land("a.ndjson", [(3599, 1), (3600, 2), (10, 3), (7300, 4)])
    (result,) = bench.ingest()
    assert (result.rows_in, result.rows_out, result.windows) == (4, 4, (0, 3600, 7200))
    splits = bench.log.snapshot().splits.values()
    assert sorted((add.windowStart, add.numRecords) for add in splits) == [(0, 2), (3600, 1), (7200, 1)]
    assert result.bytes_out == sum(add.size for add in splits)
    assert bench.rows() == [1, 2, 3, 4]


def test_running_again_reads_nothing_and_commits_nothing(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1)])
    bench.ingest()
    version = bench.log.snapshot().version
    assert bench.plan() == []
    assert bench.plan([0]) == []
    assert pending(bench.log.snapshot(), discover(bench.spec)) == []
    assert bench.ingest() == []
    assert bench.log.snapshot().version == version


def test_a_late_file_adds_its_rows_to_old_windows_and_nothing_else(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1), (3601, 2)])
    bench.ingest()
    bench.land("b.ndjson", [(2, 3), (7201, 4)])
    (result,) = bench.ingest()
    assert (result.file, result.windows) == ("b.ndjson", (0, 7200))
    assert bench.rows() == [1, 2, 3, 4]


def test_a_windowed_run_takes_its_windows_only_and_the_whole_run_the_rest(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1), (3601, 2), (7201, 3)])
    (first,) = bench.ingest([3600])
    assert (first.rows_in, first.rows_out, bench.rows()) == (3, 1, [2])
    assert landed(first) == ["landed:a.ndjson@3600"]
    assert bench.plan([3600]) == []
    (rest,) = bench.ingest()
    assert (rest.rows_out, bench.rows()) == (2, [1, 2, 3])
    assert landed(rest) == ["landed:a.ndjson@0", "landed:a.ndjson@7200", "landed:a.ndjson"]
    assert bench.plan() == []


def test_the_last_windowed_run_completes_the_file(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1), (3601, 2)])
    bench.ingest([0])
    bench.ingest([36000])
    assert len(bench.plan()) == 1
    bench.ingest([3600, 7200])
    assert bench.plan() == []
    assert bench.rows() == [1, 2]


def test_null_times_are_a_window_of_their_own(tmp_path: Path) -> None:
    nullable = pa.schema([field.with_nullable(nullable=True) for field in SCHEMA])
    bench = make_bench(tmp_path, TableConfig(time_column="at", window_seconds=HOUR), nullable)
    bench.land("a.ndjson", [(1, 1)], extra='{"id": 2}\n')
    (result,) = bench.ingest([None])
    assert (result.windows, bench.rows()) == ((0, None), [2])
    assert landed(result) == ["landed:a.ndjson@null"]
    assert bench.plan([None]) == []
    bench.ingest([0])
    assert (bench.rows(), bench.plan()) == ([1, 2], [])


def test_a_table_without_windows_takes_files_whole(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, TableConfig())
    bench.land("a.ndjson", [(1, 1), (3601, 2)])
    with pytest.raises(InvalidInput, match="no windows"):
        bench.plan([0])
    (result,) = bench.ingest()
    assert landed(result) == ["landed:a.ndjson"]
    assert (bench.rows(), bench.plan()) == ([1, 2], [])


@pytest.mark.parametrize(
    ("first", "second"), [(None, [0]), ([0], None), ([0], [0, 3600]), (None, None), ([0, 3600], [0])]
)
def test_two_runs_planned_at_once_never_ingest_a_row_twice(
    bench: Bench, first: list[int | None] | None, second: list[int | None] | None
) -> None:
    bench.land("a.ndjson", [(1, 1), (3601, 2)])
    ours, theirs = (bench.execute(bench.plan(windows)) for windows in (first, second))
    assert bench.commit(ours)
    try:
        assert not bench.commit(theirs)
    except CommitConflict:
        bench.ingest(second)
    bench.ingest()
    assert bench.rows() == [1, 2]


def test_a_run_that_died_before_its_commit_leaves_orphans_and_no_rows(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1)])
    bench.execute(bench.plan())
    assert bench.rows() == []
    bench.ingest()
    assert bench.rows() == [1]
    kinds = [parsed.kind for info in bench.log.store.list("splits/") if (parsed := parse(info.key))]
    assert kinds == [KeyKind.SPLIT, KeyKind.SPLIT]


def test_bad_lines_are_quarantined_once_and_the_others_go_on(bench: Bench) -> None:
    bad = 'nonsense\n{"id": 5}\n{"at": "1970-01-01", "id": "x"}\n'
    bench.land("a.ndjson", [(1, 1)], extra=bad)
    bench.land("b.ndjson", [(1, 2)])
    expected = [
        ("a.ndjson", 2, "the line is not valid JSON"),
        ("a.ndjson", 3, "column at: a value is required"),
        ("a.ndjson", 4, "column id: not a valid int64"),
    ]
    first, _ = bench.ingest([3600])
    assert first.rejected == {reason: 1 for _, _, reason in expected}
    bench.ingest()
    assert bench.rows() == [1, 2]
    assert bench.quarantine() == expected
    assert bench.plan() == []


def test_rejected_lines_count_once_in_the_first_commit_that_records_their_file(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1), (3601, 2)], extra="nonsense\n{}\n")
    (other,) = bench.execute(bench.plan([7200]))
    assert (other.rows_rejected, other.rows_out, len(other.txns)) == (2, 0, 1), "its commit records the content"
    (died,) = bench.execute(bench.plan())
    (again,) = bench.execute(bench.plan([0]))
    assert (sum(again.rejected.values()), again.rejected_before) == (2, 0), "objects without a commit do not count"
    assert (died.rows_rejected, again.rows_rejected) == (2, 2), "no commit has counted them"
    bench.commit([again])
    assert [(each.rows_rejected, each.rejected_before) for each in bench.ingest()] == [(0, 2)]
    assert bench.rows() == [1, 2]


def test_a_rejected_file_counts_the_lines_that_were_read_or_1(bench: Bench) -> None:
    path = bench.root / "landing" / "a.ndjson.gz"
    path.parent.mkdir()
    ids = np.random.default_rng(1).integers(2**40, size=200_000)
    whole = gzip.compress(b"".join(b'{"at": "1970-01-01", "id": %d}\n' % each for each in ids))
    path.write_bytes(whole[: len(whole) // 2])
    (broken,) = bench.execute(bench.plan(), block_bytes=100_000)
    assert 10_000 < broken.rows_in == broken.rows_rejected < 200_000
    assert (sum(broken.rejected.values()), broken.rows_out) == (1, 0)
    bench.commit([broken])
    path.write_bytes(b"\x1f\x8b no gzip")
    (smaller,) = bench.ingest()
    assert (smaller.rows_in, smaller.rows_rejected) == (1, 1)
    assert [each.rows_rejected for each in bench.ingest()] == [0], "it is in quarantine already"


def test_a_file_of_bad_lines_only_is_done_after_one_run(bench: Bench) -> None:
    bench.land("a.ndjson", [], extra="nonsense\n")
    (result,) = bench.ingest([0])
    assert (landed(result), result.adds) == (["landed:a.ndjson"], ())
    assert bench.plan() == []


def test_a_changed_file_is_rejected_unread_once_and_others_go_on(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1)])
    bench.ingest()
    size = discover(bench.spec)[0].size
    bench.land("a.ndjson", [(1, 1), (2, 2)])
    bench.land("b.ndjson", [(1, 3)])
    changed, other = bench.ingest()
    assert (changed.adds, other.rows_out, bench.rows()) == ((), 1, [1, 3])
    (entry,) = bench.quarantine()
    assert entry[:2] == ("a.ndjson", None)
    assert f"was {size} bytes, is {2 * size}" in entry[2]
    assert "Land the file under a new name" in entry[2]
    assert bench.plan() == []


def test_a_file_that_changed_between_windows_is_rejected_too(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1), (3601, 2)])
    bench.ingest([0])
    bench.land("a.ndjson", [(1, 1), (3601, 2), (3602, 3)])
    bench.ingest()
    assert bench.rows() == [1]
    assert "changed after it was ingested" in bench.quarantine()[0][2]


def test_an_unreadable_file_is_rejected_until_it_changes(bench: Bench) -> None:
    whole = gzip.compress(b'{"at": "1970-01-01", "id": 1}\n' * 3)
    path = bench.root / "landing" / "a.ndjson.gz"
    path.parent.mkdir()
    path.write_bytes(whole[:-10])
    bench.land("b.ndjson", [(1, 2)])
    broken, _ = bench.ingest()
    assert [txn.appId for txn in broken.txns] == ["rejected:a.ndjson.gz"]
    assert (bench.rows(), bench.plan()) == ([2], [])
    path.write_bytes(whole[:-12])
    assert bench.ingest()[0].actions == []  # each run rejects the smaller file, and the log never records that file
    path.write_bytes(whole)
    bench.ingest()
    assert (bench.rows(), bench.plan()) == ([1, 1, 1, 2], [])


def test_a_file_that_went_away_stops_nobody_and_is_not_recorded(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1)])
    bench.land("b.ndjson", [(1, 2)])
    works = bench.plan()
    (bench.root / "landing" / "a.ndjson").unlink()
    deleted, other = bench.execute(works)
    assert (deleted.actions, deleted.quarantine_keys, deleted.rows_rejected) == ([], (), 0)
    assert "gone" in next(iter(deleted.rejected))
    assert other.rows_out == 1


def test_no_path_reads_as_the_window_of_another(bench: Bench) -> None:
    names = ["a@0", "a%40", "a", "b@null"]
    for number, name in enumerate(names):
        bench.land(name, [(1, number)])
    for count in range(1, len(names) + 1):
        works = [work for work in bench.plan() if work.landed.path == names[count - 1]]
        bench.commit(bench.execute(works))
        assert len(bench.rows()) == count
    known = progress(bench.log.snapshot().txns, discover(bench.spec))
    assert all(each.whole and each.windows == {0} for each in known.values())
    assert window_app("a@0", None) == "landed:a%400@null"


def test_windows_of_a_file_that_spans_many_blocks_are_all_seen(bench: Bench) -> None:
    bench.land("a.ndjson", [(minute * 60, minute) for minute in range(300)], extra="nonsense\n")
    (first,) = bench.execute(bench.plan([0, HOUR]), block_bytes=4000)
    assert (first.windows, first.rows_in) == (tuple(range(0, 18_000, HOUR)), 301)
    assert first.rejected == {"the line is not valid JSON": 1}
    bench.commit([first])
    assert first.rejected_before == 0
    (rest,) = bench.execute(bench.plan(), block_bytes=4000)
    assert (rest.rejected, rest.rejected_before) == ({}, 1)
    bench.commit([rest])
    assert bench.rows() == list(range(300))
    assert len(bench.log.snapshot().splits) == 5, "a window of a file that fits into memory is one split"


def test_a_work_item_keeps_the_rejections_it_knows_of(bench: Bench) -> None:
    bench.land("a.ndjson", [(1, 1)])
    (work,) = bench.plan()
    known = replace(work, ingested_size=4, rejected_size=5, whole=True, contents=(-3, 7), seen=True)
    travelled = replace(known, windows=(None, 0), done=(3600,))
    assert IngestWork.from_json(travelled.to_json()) == travelled


def test_reasons_are_counted_exactly_in_a_bounded_number_of_them(bench: Bench) -> None:
    foreign = "".join(f'{{"at": "1970-01-01", "f{number}": 1}}\n' for number in range(300))
    bench.land("a.ndjson", [], extra="no json\n" * 5 + foreign + f'{{"{"x" * 5000}": 1}}\n')
    (result,) = bench.execute(bench.plan(), block_bytes=500)
    assert sum(result.rejected.values()) == result.rows_in == 306
    assert len(result.rejected) == MOST_REASONS + 1
    assert result.rejected["the line is not valid JSON"] == 5
    assert max(map(len, result.rejected)) <= 200
    reasons = {reason for _, _, reason in bench.quarantine()}
    assert {f"the field f{number} is not a column of the table" for number in range(300)} <= reasons


def test_counts_of_several_files_add_up_to_a_bounded_number_of_reasons() -> None:
    several = [tally({f"reason {number}": 1 for number in range(first, first + 40)}) for first in (0, 30, 60)]
    total = tally(*several, {"often": 7})
    assert sum(total.values()) == 127
    assert total["often"] == 7
    assert total["reason 35"] == 2
    assert total[OTHERS] == 127 - sum(count for reason, count in total.items() if reason != OTHERS)
    assert len(total) == MOST_REASONS + 1
    assert sum(tally(total, total).values()) == 254


def test_a_sort_column_of_17_megabytes_is_a_value_like_any_other(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, TableConfig(time_column="at", window_seconds=HOUR, sort_schema="v|timestamp/V2"))
    bench.land("a.json", [(10, 1)], extra='{"at": "1970-01-01T00:00:11Z", "id": 2, "v": "%s"}\n' % ("x" * 17 * 2**20))
    bench.ingest()
    assert bench.rows() == [1, 2]
    (add,) = bench.log.snapshot().splits.values()
    assert len(repr(add)) < 10_000
    assert bench.plan() == []


@pytest.mark.parametrize("direction", ["+", "-"])
@pytest.mark.parametrize("longest", ["x" * 10_000, "\U0010ffff" * 10_000])
def test_the_sort_keys_of_a_split_are_cut_to_bounds_of_its_rows(tmp_path: Path, direction: str, longest: str) -> None:
    config = TableConfig(time_column="at", window_seconds=HOUR, sort_schema=f"v:{direction}|timestamp/V2")
    bench = make_bench(tmp_path, config)
    bench.land("a.json", [], extra=json.dumps({"at": "1970-01-01T00:00:11Z", "id": 2, "v": longest}))
    bench.ingest()
    (add,) = bench.log.snapshot().splits.values()
    first, last = (None if key is None else json.loads(key)[0] for key in (add.minRowKey, add.maxRowKey))
    low, high = (first, last) if direction == "+" else (last, first)
    assert low == longest[:128]
    assert high == ("x" * 127 + "y" if longest[0] == "x" else None)
    assert audit(bench.log.store, bench.log.snapshot()).violations == ()


def test_a_zero_vector_of_an_index_by_cosine_lands_in_quarantine(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.list_(pa.float32(), 2))])
    by_angle = IndexDefinition("near", "vector", ("v",), {"metric": "cosine"})
    bench = make_bench(tmp_path, TableConfig(indexes=(by_angle,)), schema)
    (tmp_path / "landing").mkdir()
    lines = ['{"id": 1, "v": [1, 2]}', '{"id": 2, "v": [0, 0]}', '{"id": 3, "v": [1]}', '{"id": 4}']
    (tmp_path / "landing" / "a.ndjson").write_text("\n".join(lines))
    bench.ingest()
    assert bench.rows() == [1, 4]
    assert [(line, reason.split(",")[0]) for _, line, reason in bench.quarantine()] == [
        (2, "column v: the vector is zero"),
        (3, "column v: the vector has 1 numbers"),
    ]
