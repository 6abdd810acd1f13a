"""Combinations of features on one table: clones, partitions, raw logs, statements and erasure."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.log.actions import Txn
from storage_core.log.sharing import open_table_store
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.maintain.forget_report import ForgetReport
from storage_core.store.resolve import open_store
from storage_core.write.raw_log.history import union
from storage_core.write.raw_log.writer import RawLog
from tests.support import upkeep
from tests.support.clock import ManualClock

SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("tenant", pa.string()), ("n", pa.int64()), ("text", pa.string())]
)
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "tenants", "kind": "bitmap", "columns": ["tenant"]},
]
NOW = {"gc.horizon": "0", "gc.retention": "0"}
FAR_AHEAD = 4 * 10**12


def given(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "at": dt.datetime(2024, 1, 1, n % 2, tzinfo=dt.UTC),
            "tenant": None if n % 4 == 0 else "abc"[n % 3],
            "n": n,
            "text": f"word{n % 5} of {n}",
        }
        for n in range(first, last)
    ]


def partitioned(uri: Path | str) -> tm.Table:
    """Make a table of two windows in eight partitions, compacted and indexed, with later splits.

    The compacted splits and the later splits have deleted rows.
    """
    table = tm.Table.create(
        str(uri),
        SCHEMA,
        time_column="at",
        window="1h",
        sort_schema="tenant|timestamp/V2",
        partition_by=["tenant", "bucket[2](n)"],
        indexes=INDEXES,
        settings=NOW,
    )
    table.append(given(0, 30))
    table.append(given(30, 60))
    upkeep.catch_up(table)
    upkeep.compact(table)
    table.refresh().append(given(60, 90))
    table.delete("n % 10 = 3")
    return table.refresh()


def numbers(uri: Path | str, wanted: str | None = None) -> list[int]:
    found = tm.Table.open(str(uri)).scan(["n"], wanted).to_arrow()
    return sorted(found.column("n").to_pylist())


def searched(table: tm.Table, word: str, wanted: str) -> list[int]:
    found = table.search(word, index="words", limit=1000, columns=["n"], filter=wanted).to_arrow()
    return sorted(found.column("n").to_pylist())


def kept_up(table: tm.Table) -> None:
    """Compact, index, and collect all unneeded objects."""
    upkeep.compact(table.refresh())
    upkeep.catch_up(table.refresh())
    upkeep.checkpoint(table)
    for _ in range(2):
        upkeep.collect(table.refresh(), horizon_ms=0, at_ms=FAR_AHEAD)


def assert_sound(uri: Path | str) -> None:
    store = open_table_store(str(uri))
    found = fsck(store, clock=ManualClock(FAR_AHEAD), deep=True).findings
    assert [each for each in found if each.severity.value != "note"] == []
    assert audit(store, tm.Table.open(str(uri)).snapshot).violations == ()


@pytest.mark.parametrize("deep", [False, True])
def test_a_clone_of_a_partitioned_table_goes_on_by_itself(tmp_path: Path, *, deep: bool) -> None:
    source = partitioned(tmp_path / "source")
    expected = numbers(source.uri)
    source.clone(str(tmp_path / "clone"), deep=deep)
    clone = tm.Table.open(str(tmp_path / "clone"))
    assert numbers(clone.uri) == expected
    assert searched(clone, "word3", "tenant = 'a'") == searched(source, "word3", "tenant = 'a'") != []
    clone.update({"text": "changed"}, "tenant = 'b'")
    source.delete("n < 10")
    kept_up(clone)
    kept_up(source)
    assert numbers(clone.uri) == expected
    assert searched(clone, "changed", "n < 50") == numbers(clone.uri, "tenant = 'b' AND n < 50")
    assert numbers(source.uri) == [n for n in expected if n >= 10]
    assert_sound(clone.uri)
    assert_sound(source.uri)


@pytest.mark.parametrize("key", [None, "n"])
@pytest.mark.parametrize("deep", [False, True])
def test_rows_that_wait_in_a_raw_log_are_for_the_source_and_not_for_its_clone(
    tmp_path: Path, key: str | None, *, deep: bool
) -> None:
    raw = str(tmp_path / "raw")
    feeding = [{"name": "raw", "table": "rows", "stores": [raw]}]
    source = tm.Table.create(
        str(tmp_path / "source"), SCHEMA, primary_key=None if key is None else [key], settings={"raw_logs": feeding}
    )
    with RawLog([raw]) as log:
        log.append("rows", {"n": 1, "text": "waits"})
    source.clone(str(tmp_path / "clone"), deep=deep)
    clone = tm.Table.open(str(tmp_path / "clone"))
    assert source.scan(["n"], consistency="latest").to_arrow().num_rows == 1
    assert clone.scan(["n"], consistency="latest").to_arrow().num_rows == 0
    assert clone.config.raw_logs == ()


def test_what_is_forgotten_in_a_shallow_clone_is_named_in_its_source_until_that_forgets_it() -> None:
    source = partitioned(f"memory://{uuid4()}")
    place = f"memory://{uuid4()}"
    tag = source.clone(place).tag
    clone = tm.Table.open(place)
    assert tag is not None
    assert kept_by(clone.forget("n = 7").report) >= {(source.uri, "split", tag), (source.uri, "segment", tag)}
    collected(clone)
    held = kept_by(clone.forget_report("n = 7"))
    assert {(source.uri, each, tag) for each in ("manifest", "segment", "split")} <= held
    assert {store for store, _, _ in held} == {source.uri}, "nothing of the clone's own"
    source.forget("n = 7")
    kept_up(source)
    assert (source.uri, "split", tag) in kept_by(source.refresh().forget_report("n = 7"))
    source.untag(tag)
    kept_up(source)
    left = source.refresh().forget_report("n = 7").held
    assert {each.kind for each in left} == {"state", "manifest"}, "of splits that were compacted since: who knows"
    why = "one of the 2 newest states needs the object. Forget again after 1 more state"
    assert {each.why for each in left} == {why}
    assert source.forget("n = 7").rows == 0
    collected(source)
    assert source.refresh().forget_report("n = 7").is_clean


def collected(table: tm.Table) -> None:
    """Collect three times. One run removes a state, and a later run removes the objects of this state."""
    for _ in range(3):
        upkeep.collect(table.refresh(), horizon_ms=0, at_ms=FAR_AHEAD)


def kept_by(report: ForgetReport) -> set[tuple[str, str, str | None]]:
    return {(each.store, each.kind, each.tag) for each in report.held}


def test_a_table_that_names_its_raw_logs_is_forgotten_in_them_too(tmp_path: Path) -> None:
    raw = str(tmp_path / "raw")
    feeding = [{"name": "raw", "table": "rows", "stores": [raw]}]
    table = tm.Table.create(str(tmp_path / "table"), SCHEMA, settings={"raw_logs": feeding})
    with RawLog([raw]) as log:
        log.append("rows", {"n": 1, "text": "waits"})
        log.append("rows", {"n": 2, "text": "waits"})
    report = table.forget("n = 1").report
    assert {(each.store, each.kind) for each in report.held} == {(open_store(raw).uri, "raw_chunk")}
    assert "Distribute, then forget again" in report.held[0].why


def test_a_raw_log_that_nobody_named_is_named_by_its_writer_beside_one_that_was(tmp_path: Path) -> None:
    raws = [str(tmp_path / "one"), str(tmp_path / "two")]
    feeding = [{"name": each[-3:], "table": "rows", "stores": [each]} for each in raws]
    table = tm.Table.create(str(tmp_path / "table"), SCHEMA, settings={"raw_logs": feeding})
    for each in raws:
        with RawLog([each]) as log:
            log.append("rows", {"n": 1, "text": "x"})
    writers = [union([each]).writers[0] for each in raws]
    table.log.commit(table.snapshot, [Txn(appId=f"raw:{each}", version=1) for each in writers], operation="DISTRIBUTE")
    assert not [each for each in table.forget_report("n = 2").held if each.kind == "raw_log"]
    table.refresh().alter({"raw_logs": feeding[:1]})
    (held,) = [each for each in table.forget_report("n = 2").held if each.kind == "raw_log"]
    assert writers[1] in held.why
    with_both = table.forget_report("n = 2", raw_logs=[tm.RawTable("rows", [raws[1]])])
    assert not [each for each in with_both.held if each.kind == "raw_log"]


def test_a_report_of_a_table_opened_at_an_older_version_is_about_the_newest(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "table"), SCHEMA)
    table.append([{"n": 1, "text": "x"}, {"n": 2, "text": "x"}])
    done = table.forget("n = 1")
    older = tm.Table.open(table.uri, at=1)
    report = older.forget_report("n = 1")
    assert (report.version, report.since) == (done.report.version, done.report.since)
    assert report.since is not None
    assert older.version == 1
