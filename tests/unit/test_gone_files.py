"""The table forgets removed landed files except their content hash. A file that lands again adds no row twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.change.creation import add_column, change_column, rename_column
from storage_core.change.declaration import load
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import CheckpointFormat, TableConfig
from storage_core.data.steps import Collect
from storage_core.log.actions import PRUNED_FEATURE, Action, Metadata, RemoveTxn, Txn
from storage_core.log.conflicts import PRUNING, pruning
from storage_core.log.job_run import run
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from storage_core.write.ingest.batch import IngestResult, IngestWork, execute, plan
from storage_core.write.ingest.landing import LandedFile, LandingSpec, as_hex, content_of, discover, from_hex
from storage_core.write.ingest.progress import (
    PrunedFiles,
    file_app,
    path_of,
    progress,
    prune_gone_files,
    pruned_app,
    window_app,
)
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.ids import SeededIds
from tests.support.log_tables import split

SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), pa.field("id", pa.int64())])
FILE = "a@b.ndjson"
RETENTION_MS = 1_000
HOUR = 3_600


@dataclass(slots=True)
class Bench:
    """One table and one landing location."""

    folder: Path
    log: TransactionLog
    clock: ManualClock

    @property
    def spec(self) -> LandingSpec:
        return LandingSpec(uri=str(self.folder), format="ndjson")

    def on(self, store: ObjectStore) -> Bench:
        return Bench(self.folder, TransactionLog(store, clock=self.clock, ids=SeededIds(9)), self.clock)

    def land(self, *ids: int, name: str = FILE) -> LandedFile:
        """Land a file with one row per hour from 1970 on."""
        rows = [f'{{"at": "1970-01-01T{hour:02}:00:00Z", "id": {number}}}\n' for hour, number in enumerate(ids)]
        (self.folder / name).write_text("".join(rows))
        return next(file for file in discover(self.spec) if file.path == name)

    def take_away(self, name: str = FILE) -> None:
        (self.folder / name).unlink()

    def execute(self, snapshot: Snapshot, *windows: int | None) -> list[IngestResult]:
        works = plan(snapshot, self.spec, discover(self.spec), windows or None)
        context, now_ms = context_of(snapshot), self.clock.now_ms()
        travelled = [IngestWork.from_json(work.to_json()) for work in works]
        assert travelled == works
        return [execute(self.log.store, work, context=context, ids=self.log.ids, now_ms=now_ms) for work in travelled]

    def commit(self, snapshot: Snapshot, results: list[IngestResult]) -> None:
        if actions := [action for result in results for action in result.actions]:
            self.log.commit(snapshot, actions, operation="INGEST")

    def ingest(self, *windows: int | None) -> list[IngestResult]:
        snapshot = self.log.snapshot()
        results = self.execute(snapshot, *windows)
        self.commit(snapshot, results)
        return results

    def prune(self, after_ms: int = RETENTION_MS + 1) -> PrunedFiles:
        self.clock.now += after_ms
        return prune_gone_files(self.log, self.spec)

    def rows(self) -> list[int]:
        splits = self.log.snapshot().splits.values()
        tables = [read_split(self.log.store, add, ["id"]) for add in splits]
        return sorted(value for table in tables for value in table.column("id").to_pylist())

    def recorded(self) -> set[str]:
        return set(self.log.snapshot().txns)


def made(folder: Path, checkpoint_format: CheckpointFormat = "avro") -> Bench:
    clock = ManualClock(step_ms=1)
    log = TransactionLog(MemoryStore("table", clock=clock), clock=clock, ids=SeededIds(7))
    config = TableConfig(
        time_column="at",
        window_seconds=HOUR,
        version_retention_ms=RETENTION_MS,
        gc_horizon_ms=RETENTION_MS,
        checkpoint_interval=2,
        checkpoint_format=checkpoint_format,
    )
    log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=config.to_configuration()))
    (folder / "landing").mkdir()
    return Bench(folder / "landing", log, clock)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return made(tmp_path)


def test_of_a_file_that_is_gone_its_content_stays_and_nothing_else(bench: Bench) -> None:
    content = content_of(bench.land(1, 2))
    bench.ingest()
    assert len(bench.recorded()) == 4
    assert bench.prune() == PrunedFiles()
    bench.take_away()
    assert bench.prune() == PrunedFiles(files=1, transactions=4)
    assert bench.recorded() == {pruned_app(FILE, content)}
    assert bench.rows() == [1, 2]
    assert bench.prune() == PrunedFiles()
    assert bench.log.snapshot() == bench.log.snapshot(version=bench.log.snapshot().version)


def test_what_is_pruned_stays_so_when_columns_change_before_and_after(bench: Bench) -> None:
    bench.land(1, 2)
    bench.ingest()
    change_column(bench.log, bench.log.snapshot(), add_column("more", "int", default=7))
    bench.take_away()
    assert bench.prune() == PrunedFiles(files=1, transactions=4)
    recorded = bench.recorded()
    change_column(bench.log, bench.log.snapshot(), rename_column("more", "other"))
    assert bench.recorded() == recorded
    bench.land(1, 2)
    (back,) = bench.ingest()
    assert (back.adds, back.rows_in) == ((), 0)
    assert bench.rows() == [1, 2]


@pytest.mark.parametrize("checkpoint_format", get_args(CheckpointFormat))
def test_a_file_that_comes_back_as_it_was_gives_no_row_and_is_read_once(
    tmp_path: Path, checkpoint_format: CheckpointFormat
) -> None:
    bench = made(tmp_path, checkpoint_format)
    bench.land(1, 2)
    bench.ingest()
    for _ in range(2):
        bench.take_away()
        bench.prune()
        bench.land(1, 2)
        (back,) = bench.ingest()
        assert (back.adds, back.rows_in, len(back.txns)) == ((), 0, 2)
        assert (bench.ingest(), bench.rows()) == ([], [1, 2])


@pytest.mark.parametrize("ids", [(3, 4), (3, 4, 5)])
def test_a_file_that_comes_back_with_another_content_is_a_new_file(bench: Bench, ids: tuple[int, ...]) -> None:
    first = content_of(bench.land(1, 2))
    bench.ingest()
    bench.take_away()
    bench.prune()
    second = content_of(bench.land(*ids))
    bench.ingest()
    assert bench.rows() == [1, 2, *ids]
    assert bench.ingest() == []
    bench.take_away()
    bench.prune()
    assert bench.recorded() == {pruned_app(FILE, first), pruned_app(FILE, second)}
    for again in ((1, 2), ids):
        bench.land(*again)
        bench.ingest()
        assert bench.rows() == [1, 2, *ids]
        bench.take_away()
        bench.prune()


def test_a_file_that_comes_back_is_known_to_a_run_for_one_window_too(bench: Bench) -> None:
    bench.land(1, 2)
    bench.ingest()
    bench.take_away()
    bench.prune()
    bench.land(1, 2)
    bench.ingest(HOUR)
    assert (bench.ingest(), bench.rows()) == ([], [1, 2])


def test_a_file_of_another_content_that_is_in_by_a_window_goes_on_with_that_content(bench: Bench) -> None:
    bench.land(1, 2)
    bench.ingest()
    bench.take_away()
    bench.prune()
    bench.land(3, 4)
    bench.ingest(0)
    assert bench.rows() == [1, 2, 3]
    bench.ingest()
    assert bench.rows() == [1, 2, 3, 4]


def test_what_is_there_what_is_young_and_what_is_in_by_a_part_only_stays(bench: Bench) -> None:
    for name in ("there", "young", "part"):
        bench.land(1, 2, name=name)
    bench.ingest(0)
    snapshot = bench.log.snapshot()
    bench.commit(snapshot, [each for each in bench.execute(snapshot) if each.file != "part"])
    for name in ("young", "part"):
        bench.take_away(name)
    before = bench.recorded()
    assert bench.prune(after_ms=RETENTION_MS // 2) == PrunedFiles()
    assert bench.recorded() == before
    bench.prune()
    assert {path_of(app_id) for app_id in bench.recorded()} == {"there", "young", "part"}
    assert [app_id for app_id in bench.recorded() if "young" in app_id] == [
        app_id for app_id in bench.recorded() if app_id.startswith("pruned:")
    ]
    bench.land(1, 2, name="part")
    bench.ingest()
    assert bench.rows() == [1, 1, 1, 2, 2, 2]


def test_a_rejected_file_that_is_gone_leaves_nothing_and_is_rejected_again(bench: Bench) -> None:
    (bench.folder / "bad.gz").write_bytes(b"no gzip")
    bench.ingest()
    bench.log.checkpoint(bench.log.snapshot())
    bench.take_away("bad.gz")
    bench.prune()
    bench.prune()
    (bench.folder / "bad.gz").write_bytes(b"no gzip")
    (again,) = bench.ingest() or [IngestResult(file="")]
    assert (again.adds, again.rejected) == ((), {}), "it is in quarantine already"


def test_of_a_file_with_two_contents_or_none_everything_stays(bench: Bench) -> None:
    content = [Txn(appId=f"content:two@{number:016x}", version=number, lastUpdated=1) for number in (5, 6)]
    whole = [Txn(appId=file_app(name), version=9, lastUpdated=1) for name in ("two", "none")]
    bench.log.commit(bench.log.snapshot(), [*content, *whole], operation="INGEST")
    assert bench.prune() == PrunedFiles()


def test_work_planned_before_files_were_pruned_records_nothing(bench: Bench) -> None:
    """Otherwise, a stalled run could add a file again.

    Another run had ingested the file. The file was then removed, and its record was pruned.
    """
    bench.land(1, 2)
    stalled = bench.log.snapshot()
    results = bench.execute(stalled)
    bench.ingest()
    bench.take_away()
    bench.prune()
    with pytest.raises(CommitConflict, match="pruned transactions after this commit was planned"):
        bench.commit(stalled, results)
    bench.log.commit(stalled, [split("without-transactions")], operation="APPEND")


def test_to_prune_is_planned_again_when_anything_was_committed_meanwhile(bench: Bench) -> None:
    bench.land(1, 2)
    bench.ingest()
    head = bench.log.snapshot()
    prune: list[Action] = [RemoveTxn(appId=file_app(FILE)), pruning(head)]
    bench.log.commit(head, [split("meanwhile")], operation="APPEND")
    with pytest.raises(CommitConflict, match="planned on version"):
        bench.log.commit(head, prune, operation="PRUNE FILES")
    assert file_app(FILE) in bench.recorded()


def test_transactions_are_pruned_under_the_fence_of_the_next_version_and_only_if_recorded(bench: Bench) -> None:
    head = bench.log.snapshot()
    with pytest.raises(InvalidInput, match=PRUNING):
        bench.log.commit(head, [RemoveTxn(appId="x")], operation="X")
    with pytest.raises(CommitConflict, match="not recorded"):
        bench.log.commit(head, [RemoveTxn(appId="x"), pruning(head)], operation="X")
    with pytest.raises(InvalidInput, match="more than once"):
        bench.log.commit(head, [RemoveTxn(appId="x"), Txn(appId="x", version=1), pruning(head)], operation="X")


def test_releases_that_do_not_know_of_files_that_went_away_are_kept_out_from_then_on(bench: Bench) -> None:
    bench.land(1, 2)
    bench.ingest()
    assert PRUNED_FEATURE not in (bench.log.snapshot().protocol.readerFeatures or ())
    bench.take_away()
    bench.prune()
    protocol = bench.log.snapshot().protocol
    assert PRUNED_FEATURE in (protocol.readerFeatures or ())
    assert PRUNED_FEATURE in (protocol.writerFeatures or ())


def test_a_dry_run_counts_and_prunes_nothing(bench: Bench) -> None:
    bench.land(1, 2)
    bench.ingest()
    bench.take_away()
    bench.clock.now += RETENTION_MS + 1
    version = bench.log.snapshot().version
    found = prune_gone_files(bench.log, bench.spec, dry_run=True)
    assert (found.files, bench.log.snapshot().version) == (1, version)


def test_a_holder_that_lost_its_lease_prunes_nothing(bench: Bench) -> None:
    def lost() -> None:
        raise CommitConflict("lost")

    bench.land(1, 2)
    bench.ingest()
    bench.take_away()
    bench.clock.now += RETENTION_MS + 1
    with pytest.raises(CommitConflict, match="lost"):
        prune_gone_files(bench.log, bench.spec, require_held=lost)
    assert file_app(FILE) in bench.recorded()


def test_pruning_that_ends_at_any_request_is_done_or_not_and_rows_stay_once(bench: Bench) -> None:
    for number in range(12):
        bench.land(2 * number, 2 * number + 1, name=f"{number}.ndjson")
    bench.ingest()
    for number in range(8):
        bench.take_away(f"{number}.ndjson")
    bench.clock.now += RETENTION_MS + 1

    def run(store: ObjectStore) -> PrunedFiles:
        return prune_gone_files(bench.on(store).log, bench.spec)

    for number, left in enumerate(left_by_crashes(copy_of(bench.log.store), run)):
        after = bench.on(left)
        gone = sum(app_id.startswith("pruned:") for app_id in after.recorded())
        assert gone in (0, 8)
        bench.land(0, 1, name="0.ndjson")
        bench.land(1_000 + number, 1_001 + number, name="1.ndjson")
        after.ingest()
        extra = [1_000 + number, 1_001 + number] if gone else []
        assert after.rows() == sorted([*range(24), *extra])
        assert after.ingest() == []
        bench.take_away("0.ndjson")
        bench.take_away("1.ndjson")
        after.prune()
        after.prune()
        assert sum(app_id.startswith("pruned:") for app_id in after.recorded()) >= 7


def test_names_and_contents_survive_their_records() -> None:
    for path in ("a", "a@b", "a%40b", "a%25@x%", "@", "2026/07/x.log"):
        assert path_of(file_app(path)) == path_of(window_app(path, None)) == path_of(pruned_app(path, -1)) == path
    for content in (0, 1, -1, 2**63 - 1, -(2**63)):
        assert from_hex(as_hex(content)) == content
    known = progress({pruned_app("a@b", -7): 3}, [LandedFile("a@b", 3, "x")])
    assert known["a@b"].pruned == frozenset({-7})


def test_the_collectors_job_prunes_and_says_how_many_files(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    declared = tmp_path / "logs.yaml"
    declared.write_text(
        f"name: logs\nuri: {tmp_path / 'table'}\ncolumns: {{id: long}}\n"
        f"landing: {{uri: {landing}, format: ndjson}}\ngc: {{retention: 1ms}}\n"
    )
    table = Table.declare(load(declared))
    (landing / "a.ndjson").write_text('{"id": 1}\n')
    spec = table.landing()
    assert spec is not None
    (file,) = discover(spec)
    content = content_of(file)
    (work,) = plan(table.snapshot, spec, [file])
    result = execute(table.store, work, context=context_of(table.snapshot), ids=SeededIds(3), now_ms=1)
    table.log.commit(table.snapshot, result.actions, operation="INGEST")
    (landing / "a.ndjson").unlink()
    request = Collect(table_uri=table.uri)
    with Spark(request.master) as spark:
        planned = run(replace(request, dry_run=True), spark)
        assert (planned.details["pruned_files"], planned.details["pruned_transactions"]) == (1, 2)
        done = run(request, spark)
        assert (done.status, done.details["pruned_files"], done.details["pruned_transactions"]) == ("committed", 1, 2)
        assert run(request, spark).details["pruned_files"] == 0
    after = Table.open(table.uri)
    assert set(after.snapshot.txns) == {pruned_app("a.ndjson", content)}
    about = after.describe()
    assert [about[f"progress_{each}"] for each in ("transactions", "objects", "bytes")] == [1, 0, 0]
