"""Partitioned tables through every step: writing, compaction, pruning, statements, columns, indexes, collection."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput, Unsupported
from storage_core.change import declaration
from storage_core.compact import invariants, planner, rewindow
from storage_core.compact.invariants import scope_of
from storage_core.data.formats import avro_state
from storage_core.data.formats.kinds import Reason
from storage_core.data.rows.windows import by_partition
from storage_core.log import actions, snapshot
from storage_core.log.live_splits import Added, LiveFiles
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.audit import audit
from storage_core.maintain.audit_splits import AuditedTable, audit_split
from storage_core.maintain.repair import repair
from storage_core.read.predicate import Filter
from storage_core.read.pruning import prune, pruned
from storage_core.split.context import context_of
from storage_core.split.writer import write_split
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from tests.support.merge_plan import plan
from tests.support.upkeep import catch_up, checkpoint, collect, compact, merge

SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("source_id", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("n", pa.int64()),
    ]
)
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
TENANTS = ("a", "b/../c", "", None, "ü = %2F")


def row(tenant: str | None, hour: int = 0, n: int = 0, source: str | None = "web") -> dict[str, Any]:
    return {"time": START + dt.timedelta(hours=hour), "source_id": source, "tenant": tenant, "n": n}


def place(request: pytest.FixtureRequest) -> str:
    return f"memory://{re.sub('[^a-z0-9]', '-', request.node.name.lower())}"


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """Make a table with three splits in each of ten partitions: five tenants on two days, in two windows."""
    made = Table.create(place(request), SCHEMA, time_column="time", window="1h", partition_by=["tenant", "day(time)"])
    for n in range(3):
        made.append([row(tenant, hour, n) for tenant in TENANTS for hour in (0, 30)])
    return made


def rows_of(table: Table, wanted: Filter | None = None) -> list[tuple[Any, ...]]:
    found = table.scan(columns=["tenant", "n"], filter=wanted).to_arrow()
    return sorted(zip(*found.to_pydict().values(), strict=True), key=repr)


def assert_every_split_is_of_one_partition(table: Table) -> None:
    for add in table.snapshot.splits.values():
        split = pq.read_table(pa.BufferReader(table.store.get(add.path).data))
        found = by_partition(split, table.config.partition_fields)
        assert [dict(values) for values, _ in found] == [dict(add.partitionValues)], add.path


def test_splits_lie_in_folders_of_their_partition_and_say_it(table: Table) -> None:
    assert table.snapshot.metadata.partitionColumns == ("tenant",)
    found = {add.path.partition("/splits/")[0]: dict(add.partitionValues) for add in table.snapshot.splits.values()}
    days = ("2024-01-01", "2024-01-02")
    assert found == {
        f"tenant={folder}/time_day={day}": {"time_day": day} if tenant is None else {"tenant": tenant, "time_day": day}
        for tenant, folder in {
            "a": "a",
            "b/../c": "~e61f04d8f09354b973fb7287d1d320c3",
            "": "",
            None: "__HIVE_DEFAULT_PARTITION__",
            "ü = %2F": "%C3%BC%20%3D%20%252F",
        }.items()
        for day in days
    }
    assert_every_split_is_of_one_partition(table)
    assert {(add.sourceId, add.partitionId) for add in table.snapshot.splits.values()} == {(None, key) for key in found}


def test_a_compaction_merges_within_partitions_only(table: Table) -> None:
    before, values = rows_of(table), {tuple(each.partitionValues.items()) for each in table.snapshot.splits.values()}
    assert compact(table) == len(values) == 10
    table.refresh()
    assert len(table.snapshot.splits) == 10
    assert {tuple(each.partitionValues.items()) for each in table.snapshot.splits.values()} == values
    assert_every_split_is_of_one_partition(table)
    assert rows_of(table) == before
    assert all(each.partition("/splits/")[0] for each in table.snapshot.splits)


@pytest.mark.parametrize("tenant", TENANTS)
def test_a_filter_leaves_the_splits_of_its_partition(table: Table, tenant: str | None) -> None:
    wanted = tm.col("tenant").is_null() if tenant is None else tm.col("tenant") == tenant
    found = pruned(table.snapshot, wanted.predicate, is_counted=True)
    assert {each.partitionValues.get("tenant") for each in found.splits} == {tenant}
    assert [(each.name, each.splits) for each in found.steps] == [
        ("partition", 24),
        ("window", 0),
        ("min/max", 0),
        ("regex", 0),
    ]
    assert rows_of(table, wanted) == [(tenant, n) for n in range(3) for _ in range(2)]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (tm.col("tenant").isin(["a", ""]), 12),
        (tm.col("tenant") > "a", 12),
        (tm.col("tenant") <= "a", 12),
        (tm.col("tenant") != "a", 18),
        (tm.col("tenant").is_not_null(), 24),
        (tm.col("time") >= START + dt.timedelta(hours=24), 15),
        (tm.col("time") < START + dt.timedelta(hours=24), 15),
        (tm.col("time") == START + dt.timedelta(hours=30), 15),
        (tm.col("time").is_null(), 0),
        ((tm.col("tenant") == "a") | (tm.col("time") < START), 6),
        ((tm.col("tenant") == "a") & (tm.col("time") < START + dt.timedelta(hours=1)), 3),
    ],
)
def test_equality_lists_ranges_and_null_prune_by_partition(table: Table, wanted: Filter, left: int) -> None:
    step = pruned(table.snapshot, wanted.predicate, is_counted=True).steps[0]
    assert (step.name, 30 - step.splits) == ("partition", left)
    plain = Table.create(f"{table.uri}-plain", SCHEMA, time_column="time", window="1h")
    plain.append(table.scan().to_arrow())
    assert rows_of(table, wanted) == rows_of(plain, wanted)


def test_a_bucket_is_found_by_the_hash_of_the_literal(request: pytest.FixtureRequest) -> None:
    table = Table.create(place(request), SCHEMA, partition_by=["bucket[8](n)", "bucket[4](tenant)", "bucket[2](time)"])
    table.append([row(tenant, n, n) for n in range(40) for tenant in TENANTS])
    for wanted in (tm.col("n") == 7, tm.col("n").isin([7, 8]), tm.col("tenant") == "a", tm.col("n") > 3):
        step = pruned(table.snapshot, wanted.predicate, is_counted=True).steps[0]
        assert (step.splits > 0) == (wanted.predicate != (tm.col("n") > 3).predicate)
        assert rows_of(table, wanted)
    assert len(rows_of(table, tm.col("n") == 7)) == len(TENANTS)
    assert len(rows_of(table, tm.col("time") == START + dt.timedelta(hours=7))) == len(TENANTS)
    assert len(rows_of(table, tm.col("tenant") == "a")) == 40


def test_a_text_that_is_cut_in_the_log_is_found(request: pytest.FixtureRequest) -> None:
    table = Table.create(place(request), SCHEMA, partition_by="tenant")
    long = ["x" * 1024, "x" * 1024 + "y", "x" * 1024 + "z" * 1000, "x" * 1023]
    table.append([row(tenant) for tenant in long])
    assert len(table.snapshot.splits) == 2
    checkpoint(table)
    again = Table.open(table.uri)
    for tenant in long:
        assert rows_of(again, tm.col("tenant") == tenant) == [(tenant, 0)]
        assert (tenant, 0) in rows_of(again, tm.col("tenant") >= tenant)


def many(request: pytest.FixtureRequest, fields: list[str]) -> Table:
    """Make a table of two hundred partitions with one split each, in twenty manifests."""
    settings = {"checkpoint.manifest_entries": 10}
    table = Table.create(place(request), SCHEMA, partition_by=fields, settings=settings)
    table.append([row(None if n == 199 else f"t{n:03}", n * 24, n) for n in range(200)])
    checkpoint(table)
    return table


@pytest.mark.parametrize(
    ("fields", "wanted", "manifests"),
    [
        (["tenant"], tm.col("tenant") == "t057", (1, 2)),
        (["tenant"], tm.col("tenant").isin(["t005", "t157"]), (2, 3)),
        (["tenant"], (tm.col("tenant") >= "t050") & (tm.col("tenant") < "t060"), (1, 3)),
        (["tenant"], tm.col("tenant").is_null(), (1, 1)),
        (["tenant"], tm.col("tenant") == "t", (0, 1)),
        (["day(time)"], tm.col("time") >= START + dt.timedelta(days=190), (1, 2)),
        (["month(time)"], tm.col("time") < START - dt.timedelta(days=1), (0, 0)),
        (["truncate[10](n)"], tm.col("n") == 57, (1, 3)),
        (["bucket[100](n)", "tenant"], tm.col("n") == 57, (1, 2)),
        (["tenant"], tm.col("n") == 57, (20, 20)),
    ],
)
def test_only_manifests_that_can_match_are_opened(
    request: pytest.FixtureRequest, fields: list[str], wanted: Filter, manifests: tuple[int, int]
) -> None:
    table = many(request, fields)
    store = MeteredStore(table.store)
    opened = TransactionLog(store).snapshot()
    before = store.requests["get"]
    left = prune(opened, wanted.predicate)
    least, most = manifests
    assert least <= store.requests["get"] - before <= most
    assert {add.path for add in left} == {add.path for add in prune(table.refresh().snapshot, wanted.predicate)}
    assert len(rows_of(Table.open(table.uri), wanted)) == len(rows_of(table, wanted))


SPLIT_PARTS: Mapping[str, Mapping[str, Any]] = {
    "source": {"sourceId": "other"},
    "partition": {"partitionId": "tenant=other"},
    "schema family": {"docMappingRef": "other"},
    "sort schema": {"sortSchema": "n__i|timestamp/V2"},
    "window duration": {"windowSeconds": 1800},
}


def _two_splits(request: pytest.FixtureRequest) -> Table:
    table = Table.create(place(request), SCHEMA, time_column="time", window="1h", partition_by=["source_id", "tenant"])
    for n in range(2):
        table.append([row("a", n=n)])
    return table


@pytest.mark.parametrize("part", SPLIT_PARTS)
def test_splits_that_differ_in_one_part_of_the_scope_are_not_merged(request: pytest.FixtureRequest, part: str) -> None:
    table = _two_splits(request)
    one, other = table.snapshot.splits.values()
    alike = replace(table.snapshot, splits=LiveFiles(added={add.path: Added(add, 1, 1) for add in (one, other)}))
    assert [len(each.inputs) for each in plan(alike)] == [2]
    changed = replace(other, **SPLIT_PARTS[part])
    differing = replace(alike, splits=LiveFiles(added={add.path: Added(add, 1, 1) for add in (one, changed)}))
    assert [each for each in plan(differing) if len(each.inputs) > 1] == []
    with pytest.raises(InvalidInput, match="CS-1"):
        invariants.require_one_scope(table.snapshot.table_id, one.windowStart, [one, changed])


def test_splits_of_two_tables_are_of_two_scopes(request: pytest.FixtureRequest) -> None:
    (one, _) = _two_splits(request).snapshot.splits.values()
    assert scope_of("this", one) != scope_of("other", one)


def test_sources_and_tenants_are_parts_of_the_scope_with_real_values(request: pytest.FixtureRequest) -> None:
    table = Table.create(place(request), SCHEMA, time_column="time", window="1h", partition_by=["source_id", "tenant"])
    for n in range(3):
        table.append([row(tenant, 0, n, source) for tenant in ("a", "b") for source in ("web", "app", None, "")])
    compact(table)
    table.refresh()
    found = {(add.sourceId, add.partitionId) for add in table.snapshot.splits.values()}
    sources = ("web", "app", "__HIVE_DEFAULT_PARTITION__", None)
    assert found == {(source, f"tenant={tenant}") for source in sources for tenant in ("a", "b")}
    assert len(table.snapshot.splits) == 8
    assert_every_split_is_of_one_partition(table)


def test_statements_take_partitions_and_move_rows_between_them(table: Table) -> None:
    store = MeteredStore(table.store)
    gone = Table(store, TransactionLog(store), table.snapshot)
    before = store.requests["get"]
    assert gone.delete(tm.col("tenant") == "a").rows == 6
    assert store.requests["get"] - before < 6, "the log says that all rows of the partition go: no split is read"
    table.refresh()
    assert "a" not in {add.partitionValues.get("tenant") for add in table.snapshot.splits.values()}

    table.overwrite([row("", 0, 70), row("", 31, 71)], tm.col("tenant") == "")
    assert rows_of(table, tm.col("tenant") == "") == [("", 70), ("", 71)]
    table.update({"tenant": "moved"}, tm.col("tenant").is_null())
    assert rows_of(table, tm.col("tenant").is_null()) == []
    assert len(rows_of(table, tm.col("tenant") == "moved")) == 6
    table.upsert([row("moved", 0, 0), row("new", 0, 5)], on=["tenant", "n"])
    assert rows_of(table, tm.col("tenant") == "new") == [("new", 5)]
    assert_every_split_is_of_one_partition(table)
    compact(table)
    assert_every_split_is_of_one_partition(table.refresh())
    assert len(rows_of(table, tm.col("tenant") == "moved")) == 5


def test_a_change_of_the_window_keeps_partitions(table: Table) -> None:
    before = rows_of(table)
    table.alter({"window": "15m"})
    works = rewindow.plan(table.snapshot, windows=None, now_ms=0)
    assert len(works) == 10
    done = [rewindow.execute(table.store, work, ids=SystemIds(), now_ms=1) for work in works]
    table.log.commit(table.snapshot, [each for result in done for each in result.actions], operation="REWINDOW")
    table.refresh()
    assert {add.windowSeconds for add in table.snapshot.splits.values()} == {900}
    assert_every_split_is_of_one_partition(table)
    assert rows_of(table) == before


@pytest.mark.parametrize("name", ["tenant", "time"])
@pytest.mark.parametrize("verb", ["drop_column", "rename_column"])
def test_a_column_of_partitions_is_neither_dropped_nor_renamed(table: Table, name: str, verb: str) -> None:
    change = getattr(table, verb)
    with pytest.raises(InvalidInput, match=f"column '{name}' cannot be .*(partitioned by|time column). Create a table"):
        change(name) if verb == "drop_column" else change(name, "other")


def test_columns_change_beside_partitions(request: pytest.FixtureRequest) -> None:
    schema = pa.schema([("id", pa.int32()), ("day", pa.date32()), ("x", pa.string())])
    table = Table.create(place(request), schema, partition_by=["bucket[4](id)", "truncate[10](id)", "day"])
    rows = [{"id": n, "day": dt.date(2024, 1, 1 + n % 2), "x": "x"} for n in range(40)]
    table.append(rows)
    found = {add.path: dict(add.partitionValues) for add in table.snapshot.splits.values()}
    table.widen_column("id", "bigint")
    table.rename_column("x", "y")
    table.add_column("x", pa.int64(), default=7)
    with pytest.raises(InvalidInput, match="'day' is a date in partition_by"):
        table.widen_column("day", "timestamp")
    table.append([{"id": each["id"], "day": each["day"], "y": "y", "x": 1} for each in rows])
    assert {*map(repr, found.values())} == {repr(dict(add.partitionValues)) for add in table.snapshot.splits.values()}
    compact(table)
    table.refresh()
    assert len(table.snapshot.splits) == len(found)
    assert table.scan(filter=tm.col("id") == 17).to_arrow().num_rows == 2
    assert sorted(table.scan(columns=["x"]).to_arrow().column("x").to_pylist()) == [1] * 40 + [7] * 40
    assert_every_split_is_of_one_partition(table)


KEYED = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
    ]
)


def keyed_rows(table: Table) -> dict[tuple[str, int], str]:
    found = table.scan(columns=["tenant", "id", "name"]).to_arrow().to_pydict()
    return {(str(tenant), int(str(id_))): str(name) for tenant, id_, name in zip(*found.values(), strict=True)}


def test_a_keyed_table_is_merged_patched_and_deleted_within_partitions(request: pytest.FixtureRequest) -> None:
    table = Table.create(
        place(request),
        KEYED,
        primary_key=["tenant", "id"],
        partition_by=["tenant", "bucket[2](id)"],
        indexes=[{"name": "names", "kind": "fulltext", "columns": ["name"]}],
    )
    model: dict[tuple[str, int], str] = {}
    for step in range(4):
        with table.writer() as writer:
            put = {(f"t{n % 3}", n): f"word{step}" for n in range(step, 30, step + 1)}
            writer.put([{"tenant": tenant, "id": id_, "name": name} for (tenant, id_), name in put.items()])
            model |= put
            writer.patch([{"tenant": "t0", "id": 0, "name": f"patched{step}"}])
            model["t0", 0] = f"patched{step}"
            writer.delete([{"tenant": "t1", "id": 4}])
            model.pop(("t1", 4), None)
            writer.flush()
        merge(table)
        assert keyed_rows(table.refresh()) == model
        assert_every_split_is_of_one_partition(table)
    catch_up(table)
    compact(table)
    table.refresh()
    assert keyed_rows(table) == model
    assert_every_split_is_of_one_partition(table)
    assert len({tuple(add.partitionValues.items()) for add in table.snapshot.splits.values()}) == 6
    assert (table.get({"tenant": "t2", "id": 5}) or {})["name"] == model["t2", 5]
    hits = table.search("word3", index="names", limit=100).to_arrow()
    assert hits.num_rows == sum(name == "word3" for name in model.values())


def test_a_keyed_table_refuses_partitions_by_other_columns(request: pytest.FixtureRequest) -> None:
    with pytest.raises(InvalidInput, match=r"is not a column of the key"):
        Table.create(place(request), KEYED, primary_key=["id"], partition_by="tenant")


def test_indexes_and_collection_go_on(request: pytest.FixtureRequest) -> None:
    table = Table.create(
        place(request),
        SCHEMA,
        time_column="time",
        window="1h",
        partition_by=["tenant"],
        indexes=[{"name": "tenants", "kind": "bitmap", "columns": ["tenant"]}],
        settings={"gc.retention": "1s", "gc.horizon": "1s", "checkpoint.interval": 1},
    )
    for n in range(3):
        table.append([row(tenant, 0, n) for tenant in TENANTS])
    catch_up(table)
    compact(table)
    catch_up(table)
    table.refresh()
    live = {*table.snapshot.splits}
    report = collect(table, at_ms=table.log.clock.now_ms() + 10_000, horizon_ms=1000)
    splits = {info.key for info in table.store.list("") if info.key.endswith(".parquet")}
    assert {each.key for each in report.candidates if each.reason is Reason.REMOVED_SPLIT} == splits - live
    assert (len(splits - live), report.unknown_keys) == (15, ())
    assert rows_of(table, tm.col("tenant") == "a") == [("a", n) for n in range(3)]


def test_windows_leave_with_all_of_their_partitions(table: Table) -> None:
    end_ms = int((START + dt.timedelta(hours=1)).timestamp()) * 1000
    table.alter({"retention": "1h"})
    leaving = planner.plan_expiry(table.snapshot, retention_ms=3_600_000, now_ms=end_ms + 3_600_000)
    assert [(each.window_start * 1000, each.splits) for each in leaving.windows] == [(end_ms - 3_600_000, 15)]
    table.log.commit(table.snapshot, leaving.removes(end_ms), operation="EXPIRE", requirements=[leaving.requirement])
    assert len(rows_of(table.refresh())) == 15


def test_a_split_of_no_partition_is_not_written(table: Table) -> None:
    rows, window = table.scan(filter=tm.col("time") == START).to_arrow(), int(START.timestamp())
    context = context_of(table.snapshot)
    with pytest.raises(InvalidInput, match=r"expected '', 'tenant=__HIVE.*'. Divide the rows by partition"):
        write_split(
            table.store, rows.slice(0, 1), context=context, window=window, num_merge_ops=0, split_id=SystemIds().uuid(),
            now_ms=0,
        )  # fmt: skip


def test_a_declaration_has_partitions_which_it_does_not_change(tmp_path: Path) -> None:
    file = tmp_path / "events.yaml"
    text = f"{{name: events, uri: {tmp_path}/events, columns: {{id: long, tenant: string}}, partition_by: PARTS}}"
    file.write_text(text.replace("PARTS", '[tenant, "identity(id)"]'), encoding="utf-8")
    table = Table.declare(declaration.load(file))
    assert table.describe()["partition_by"] == ["tenant", "id"]
    assert Table.declare(declaration.load(file)).version == 0
    for parts in ("tenant", "[]"):
        file.write_text(text.replace("PARTS", parts), encoding="utf-8")
        with pytest.raises(InvalidInput, match=r"differs from the existing table in partition_by\. These settings"):
            Table.declare(declaration.load(file))
    file.write_text(text.replace("PARTS", '"day(tenant)"'), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"partition_by.*day has no value for 'tenant' of type string"):
        declaration.load(file)


def test_a_release_before_refuses_and_tables_without_partitions_need_no_feature(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = Table.create(f"{table.uri}-without", SCHEMA)
    assert actions.PARTITIONS_FEATURE not in (without.snapshot.protocol.readerFeatures or ())
    for features in (table.snapshot.protocol.readerFeatures, table.snapshot.protocol.writerFeatures):
        assert actions.PARTITIONS_FEATURE in (features or ())
    monkeypatch.setattr(snapshot, "FEATURES", actions.FEATURES - {actions.PARTITIONS_FEATURE})
    with pytest.raises(Unsupported, match="partitions"):
        Table.open(table.uri)
    assert Table.open(without.uri).version == 0


def test_an_audit_finds_a_split_whose_values_are_not_those_of_its_rows(table: Table) -> None:
    assert audit(table.store, table.snapshot).violations == ()
    add = next(each for each in table.snapshot.splits.values() if each.partitionValues.get("tenant") == "a")
    faults = audit_split(table.store, add, AuditedTable.of(table.snapshot))
    wrong = replace(add, partitionValues={"tenant": "b"})
    found = [each for each in audit_split(table.store, wrong, AuditedTable.of(table.snapshot)) if each not in faults]
    assert {each.invariant for each in found} == {"SS-5"}
    assert any("expected rows of the partition {'tenant': 'b'} only, found" in each.message for each in found)


def parts_of(head: Snapshot) -> dict[str, object]:
    return {add.path: (add.partitionValues, add.sourceId, add.partitionId) for add in head.splits.values()}


def test_a_repair_finds_partitions_again_by_the_splits(table: Table) -> None:
    table.append([row("a", 50, 9)])
    expected = {
        add.path: (add.partitionValues, add.sourceId, add.partitionId) for add in table.snapshot.splits.values()
    }
    lost, target = MemoryStore("lost"), MemoryStore("target")
    for info in table.store.list(""):
        if not info.key.startswith("_transaction_log/"):
            lost.put(info.key, table.store.get(info.key).data, IfAbsent())
    repair(lost, target, clock=SystemClock(), ids=SystemIds())
    found = TransactionLog(target).snapshot()
    assert found.metadata.partitionColumns == ("tenant",)
    assert found.config.partition_by == ("tenant", "day(time)")
    assert parts_of(found) == expected


def test_a_reader_by_the_rules_of_the_protocol_finds_each_partition(table: Table) -> None:
    """The reader uses only the rules of the reference: schema, partition columns, and values of actions."""
    compact(table)
    checkpoint(table)
    metadata, live = _by_the_protocol(table.store)
    columns = {each["name"] for each in json.loads(metadata["schemaString"])["fields"]}
    assert metadata["partitionColumns"] == ["tenant"]
    assert {*metadata["partitionColumns"]} <= columns
    for tenant in TENANTS:
        own = [path for path, values in live.items() if values.get("tenant") == tenant]
        found = [
            pq.read_table(pa.BufferReader(table.store.get(path).data), columns=["tenant", "n"]).to_pylist()
            for path in own
        ]
        assert sorted(each["n"] for rows in found for each in rows) == [0, 0, 1, 1, 2, 2]
        assert {each["tenant"] for rows in found for each in rows} == {tenant}
        assert all(
            f"tenant={values.get('tenant')}" in path for path, values in live.items() if tenant == "a" and path in own
        )
    (state,) = (info.key for info in table.store.list("_transaction_log/state-v"))
    manifests = avro_state.decode_state(table.store.get(state).data, state).manifests
    assert [each.partition_bounds for each in manifests] == [{"time_day": ("2024-01-01", "2024-01-02")}]


def _by_the_protocol(store: MeteredStore) -> tuple[Mapping[str, Any], dict[str, Mapping[str, str]]]:
    metadata: Mapping[str, Any] = {}
    live: dict[str, Mapping[str, str]] = {}
    for key in sorted(info.key for info in store.list("_transaction_log/") if re.search(r"/\d{20}\.json$", info.key)):
        data = store.get(key).data
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        for line in text.splitlines():
            ((name, body),) = json.loads(line).items()
            match name:
                case "metaData":
                    metadata = body
                case "add":
                    live[body["path"]] = body["partitionValues"]
                case "remove":
                    del live[body["path"]]
                case _:
                    pass
    return metadata, live


def test_partitions_are_described_and_never_change(table: Table) -> None:
    assert table.describe()["partition_by"] == ["tenant", "day(time)"]
    with pytest.raises(InvalidInput, match="partition_by"):
        table.alter({"partition_by": ["tenant"]})
