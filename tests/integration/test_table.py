"""`Table` on a local directory: its guarantees for users, and its refusals."""

from __future__ import annotations

import datetime as dt
import gc
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage_core.base.clock import SystemIds
from storage_core.base.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired, Unavailable
from storage_core.change.creation import configure
from storage_core.change.declaration import load
from storage_core.index import catch_up
from storage_core.read.verified_files import query_errors
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.table import exists
from tidemark import Table, col

SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("status", pa.int32()),
        pa.field("path", pa.string()),
    ]
)
START = dt.datetime(2015, 5, 17, 10, tzinfo=dt.UTC)
DECLARATION = """
name: clicks
uri: {uri}
columns: {{timestamp: timestamp!, user: string{more}}}
time_column: timestamp
window: 15m
indexes: [{{name: users, kind: bitmap, columns: [user]}}]
"""


def events(count: int, minutes: int = 7) -> list[dict[str, object]]:
    return [
        {"timestamp": START + dt.timedelta(minutes=minutes * each), "status": 200 + each % 3, "path": f"/{each}"}
        for each in range(count)
    ]


@pytest.fixture
def logs(tmp_path: Path) -> Table:
    table = Table.create(
        str(tmp_path / "logs"), SCHEMA, time_column="timestamp", sort_schema="status__i|timestamp/V2", window="1h"
    )
    table.append(events(20))
    return table


def split_files(table: Table) -> list[Path]:
    return [path for add in table.snapshot.splits if (path := table.store.local_path(add)) is not None]


def test_a_filter_means_the_same_as_an_expression_and_as_sql(logs: Table) -> None:
    wanted = (col("status") >= 201) & (col("path") != "/1") & (col("timestamp") < START + dt.timedelta(hours=1))
    text = "status >= 201 and path <> '/1' and timestamp < '2015-05-17 11:00:00+00'"
    rows = logs.scan(filter=wanted).to_arrow().sort_by("path").to_pylist()
    assert rows == logs.scan(filter=text).to_arrow().sort_by("path").to_pylist()
    assert rows == logs.sql(f"select * from t where {text} order by path").to_pylist()
    assert {row["path"] for row in rows} == {"/2", "/4", "/5", "/7", "/8"}
    assert len(logs.scan(filter=wanted).explain().splits) == 1


@pytest.mark.parametrize(
    "text", ["1=1) union select * from t --", "status in (select 1)", "status = 1; drop table t", ""]
)
def test_a_filter_that_is_more_than_a_condition_is_refused(logs: Table, text: str) -> None:
    with pytest.raises(InvalidInput):
        logs.scan(filter=text)


@pytest.mark.parametrize("query", ["drop view t", "copy t to 'x'", "select 1; select 2", "select nothing from t", ""])
def test_a_query_that_is_not_one_sound_select_is_refused(logs: Table, query: str) -> None:
    with pytest.raises(InvalidInput):
        logs.sql(query)


def test_a_query_reads_the_splits_of_the_snapshot_and_no_other_file(logs: Table) -> None:
    live = split_files(logs)[0]
    orphan = live.with_name("00000000-0000-4000-8000-000000000000.parquet")
    orphan.write_bytes(live.read_bytes())
    for path in (orphan, Path("/etc/hostname")):
        with pytest.raises(InvalidInput, match=r"the table function .* is not allowed"):
            logs.sql(f"select count(*) from t, read_blob('{path}')")
    assert logs.sql("select count(*) as n from t").to_pylist() == [{"n": 20}]


def test_a_flipped_bit_anywhere_in_a_split_is_corrupt_for_every_reader(logs: Table) -> None:
    path = split_files(logs)[0]
    sound = path.read_bytes()
    for position in range(0, len(sound), max(1, len(sound) // 40)):
        damaged = bytearray(sound)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        opened = Table.open(logs.uri)
        with pytest.raises(Corrupt, match=path.name):
            opened.scan().to_arrow()
        with pytest.raises(Corrupt, match=path.name):
            opened.sql("select sum(status) from t")
    path.write_bytes(sound)
    assert Table.open(logs.uri).scan().to_arrow().num_rows == 20


def test_a_split_that_is_gone_or_cut_is_named(logs: Table) -> None:
    path = split_files(logs)[0]
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(Corrupt, match=path.name):
        Table.open(logs.uri).scan().to_arrow()
    path.unlink()
    with pytest.raises(SnapshotExpired, match=path.name):
        Table.open(logs.uri).scan().to_arrow()


def test_a_table_shows_where_it_is_and_at_which_version(logs: Table) -> None:
    assert repr(logs) == f"Table({logs.uri!r}, version=1)"


def test_a_scan_shows_in_a_line_what_it_reads(logs: Table) -> None:
    assert repr(logs.scan()) == f"Scan({logs.uri!r}, version=1)"
    chosen = repr(logs.scan(["status"], filter="status = 200"))
    assert chosen.startswith(f"Scan({logs.uri!r}, version=1, columns=['status'], filter=")
    many = repr(logs.scan(filter=col("path").isin([f"/{n}" for n in range(10_000)])))
    assert len(many) < len(logs.uri) + 300


def test_an_open_table_stays_at_its_version_until_it_is_refreshed(logs: Table) -> None:
    other = Table.open(logs.uri)
    logs.append(events(3))
    assert other.sql("select count(*) as n from t").to_pylist() == [{"n": 20}]
    assert other.refresh().sql("select count(*) as n from t").to_pylist() == [{"n": 23}]
    assert other.sql("select count(*) as n from t", at=1).to_pylist() == [{"n": 20}]


def test_a_table_opens_at_a_version_and_at_a_moment(logs: Table) -> None:
    logs.append(events(3))
    first, second = (entry.timestamp for entry in reversed(logs.history(limit=2)))
    instants = [dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in (first, second)]
    at: tuple[int | str | dt.datetime, ...] = (1, "1", *instants, instants[1].isoformat())
    assert [Table.open(logs.uri, at=each).version for each in at] == [1, 1, 1, 2, 2]
    with pytest.raises(NotFound):
        Table.open(logs.uri, at=3)
    with pytest.raises(NotFound):
        Table.open(logs.uri, at=instants[0] - dt.timedelta(days=1))
    with pytest.raises(InvalidInput, match="without `at`"):
        Table.open(logs.uri, at=1).append(events(1))


def test_a_table_exists_after_its_first_version_was_collected(tmp_path: Path) -> None:
    declared = tmp_path / "clicks.yaml"
    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more=""))
    table = Table.declare(load(declared))
    for _ in range(10):
        table.append({"timestamp": START, "user": "a"})
    for version in range(9):
        (tmp_path / "clicks" / "_transaction_log" / f"{version:020d}.json").unlink()
    assert exists(table.uri)
    assert Table.declare(load(declared)).version == 10
    with pytest.raises(InvalidInput, match="exists"):
        Table.create(table.uri, SCHEMA)


def test_a_declaration_that_differs_from_its_table_is_refused_by_field(tmp_path: Path) -> None:
    declared = tmp_path / "clicks.yaml"
    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more=""))
    Table.declare(load(declared))
    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more=", ms: int!"))
    with pytest.raises(
        InvalidInput, match="differs from the existing table in column 'ms': the column is new and required"
    ):
        Table.declare(load(declared))
    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more="").replace("window: 15m", ""))
    with pytest.raises(InvalidInput, match="Windows cannot be added or removed later"):
        Table.declare(load(declared))


def test_an_index_that_is_added_to_a_declaration_joins_the_table_and_one_that_is_dropped_leaves_it(
    tmp_path: Path,
) -> None:
    declared = tmp_path / "clicks.yaml"
    first = DECLARATION.format(uri=tmp_path / "clicks", more="")
    declared.write_text(first)
    table = Table.declare(load(declared))
    table.append({"timestamp": START, "user": "ann"})
    work = catch_up.plan(table.snapshot, "users")
    built = [catch_up.execute(table.store, item, ids=SystemIds()) for item in work.work]
    table.log.commit(table.snapshot, work.actions(built), operation="CATCH UP")

    declared.write_text(first.replace("name: users, kind: bitmap", "name: names, kind: fulltext"))
    changed = Table.declare(load(declared))
    assert [index.name for index in changed.config.indexes] == ["names"]
    assert changed.search("ann", index="names").num_rows == 1
    assert not changed.snapshot.segments
    assert Table.declare(load(declared)).version == changed.version
    with pytest.raises(NotFound, match="users"):
        changed.search("ann", index="users")


def test_rows_appended_to_a_keyed_table_are_seen_at_once_and_wait_for_a_merge(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "planes"), pa.schema([("tail", pa.string()), ("seats", pa.int32())]), primary_key="tail"
    )
    table.append([{"tail": "N1", "seats": 2}, {"tail": "N2", "seats": 4}])
    assert table.get("N1") == {"tail": "N1", "seats": 2}
    assert table.scan(consistency="committed").to_arrow().num_rows == 2
    assert table.scan().to_arrow().num_rows == 0
    with table.writer() as writer:
        writer.patch({"tail": "N2", "seats": 5})
        writer.delete(["N1"])
        assert table.scan(consistency="latest").to_arrow().to_pylist() == [{"tail": "N2", "seats": 5}]
        assert table.scan(consistency="committed").to_arrow().num_rows == 2
    assert table.get("N1") is None
    assert table.sql("select sum(seats) as seats from t", consistency="latest").to_pylist() == [{"seats": 5}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_column": "path"}, "time_column is 'path', which has the type"),
        ({"time_column": "timestamp", "window": "24h"}, "coarse"),
        ({"time_column": "timestamp", "window": 700}, "700"),
        ({"time_column": "timestamp", "sort_schema": "status__s|timestamp/V2"}, "status"),
        ({"primary_key": "path", "time_column": "timestamp"}, "part of the key"),
        ({"primary_key": "nothing"}, "nothing"),
        ({"late_data": {"policy": "drop"}}, "late_data needs a time_column"),
        ({"late_data": {"policy": "hold"}, "time_column": "timestamp"}, "hold"),
        ({"late_data": {"polcy": "drop"}, "time_column": "timestamp"}, "polcy"),
        ({"late_data": {"acceptance_window": "soon"}, "time_column": "timestamp"}, "soon"),
        ({"late_data": {"acceptance_window": 10**15}, "time_column": "timestamp"}, "Give 999999999h or less"),
        ({"indexes": [{"name": "x", "kind": "fulltext", "columns": ["status"]}]}, "status"),
        ({"indexes": [{"name": "x", "columns": ["path"]}]}, "kind"),
    ],
)
def test_a_definition_that_contradicts_itself_is_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.create(str(tmp_path / "t"), SCHEMA, **settings)  # type: ignore[arg-type]  # wrong on purpose
    assert not exists(str(tmp_path / "t"))


@pytest.mark.parametrize(
    "row",
    [{"timestamp": None, "status": 1}, {"timestamp": START, "status": "many"}, {"timestamp": START, "stats": 1}],
)
def test_a_row_that_does_not_fit_leaves_the_table_as_it_was(logs: Table, row: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        logs.append([*events(2), row])
    assert Table.open(logs.uri).version == 1
    assert len(list((Path(logs.uri.removeprefix("file://")) / "splits").rglob("*.parquet"))) == len(split_files(logs))


def test_settings_of_a_newer_release_survive_a_change_of_the_declaration(tmp_path: Path) -> None:
    declared = tmp_path / "clicks.yaml"
    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more=""))
    table = Table.declare(load(declared))
    metadata = table.snapshot.metadata
    foreign = {"tidemark.newer": "kept", "delta.appendOnly": "true"}
    configured = replace(metadata, configuration={**metadata.configuration, **foreign})
    table.log.commit(table.snapshot, [configured], operation="CONFIGURE")
    assert Table.declare(load(declared)).version == 1

    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more="").replace("name: users", "name: people"))
    changed = Table.declare(load(declared))
    assert changed.version == 2
    assert [index.name for index in changed.config.indexes] == ["people"]
    assert foreign.items() <= changed.snapshot.metadata.configuration.items()


def test_a_declaration_that_loses_a_race_is_compared_again_and_commits_at_most_once(tmp_path: Path) -> None:
    declared = tmp_path / "clicks.yaml"
    declared.write_text(DECLARATION.format(uri=tmp_path / "clicks", more=""))
    first, second, third = (Table.declare(load(declared)) for _ in range(3))
    settings = {**first.snapshot.metadata.configuration, "tidemark.gcHorizonMs": "7"}
    assert configure(first.log, first.snapshot, settings).version == 1
    assert configure(second.log, second.snapshot, settings).version == 1
    assert configure(third.log, third.snapshot, {**settings, "tidemark.gcHorizonMs": "8"}).version == 2
    assert Table.open(first.uri).config.gc_horizon_ms == 8


def test_a_row_that_fails_while_a_scan_streams_is_the_callers_error(logs: Table) -> None:
    assert sum(batch.num_rows for batch in logs.scan().to_reader(batch_rows=7)) == 20
    count = 300_000
    logs.append(pa.table({"timestamp": [START] * count, "status": range(count), "path": ["7"] * (count - 1) + ["x"]}))
    reader = logs.scan(filter="status > 300 and cast(path as int) = 7").to_reader()
    with pytest.raises(InvalidInput, match="is not a value of the type"):
        reader.read_all()


def test_a_query_beyond_the_memory_is_unavailable_and_so_is_a_file_that_cannot_be_read(logs: Table) -> None:
    add = next(iter(logs.snapshot.splits.values()))
    for text, error in (
        ("select 1", duckdb.OutOfMemoryException("Out of Memory Error: could not allocate block")),
        ("select 1", duckdb.IOException(f"IO Error: Could not read from file {add.path}")),
        ("scan", OSError("IO Error: Could not read")),
    ):
        with pytest.raises(Unavailable, match="again"), query_errors(text, [add]):
            raise error


def test_the_history_ends_at_the_version_of_the_table(logs: Table) -> None:
    stale = Table.open(logs.uri)
    logs.append(events(1))
    assert [entry.version for entry in Table.open(logs.uri, at=1).history()] == [1, 0]
    assert [entry.version for entry in stale.history()] == [1, 0]
    assert [entry.version for entry in stale.refresh().history()] == [2, 1, 0]


def test_a_vanished_split_is_an_expired_snapshot_for_every_reader(logs: Table) -> None:
    keyed = Table.create(str(Path(logs.uri.removeprefix("file://")).with_name("keyed")), SCHEMA, primary_key="path")
    rows, context = logs.scan().to_arrow(), context_of(keyed.snapshot)
    adds = sort_and_write(keyed.store, rows, context=context, ids=SystemIds(), now_ms=1)
    keyed.log.commit(keyed.snapshot, adds, operation="MERGE")
    for path in [*split_files(logs), *split_files(keyed.refresh())]:
        path.unlink()
    readers: list[Callable[[], object]] = [
        lambda: logs.scan().to_arrow(),
        lambda: logs.scan().to_reader().read_all(),
        lambda: logs.sql("select count(path) from t"),
        lambda: keyed.scan(consistency="latest").to_arrow(),
        lambda: keyed.get("/1"),
    ]
    for read in readers:
        with pytest.raises(SnapshotExpired, match="Open a newer version"):
            read()


def test_describe_counts_only_the_splits_that_the_present_definition_covers(tmp_path: Path) -> None:
    declared = tmp_path / "clicks.yaml"
    text = DECLARATION.format(uri=tmp_path / "clicks", more=", place: string")
    declared.write_text(text)
    table = Table.declare(load(declared))
    table.append({"timestamp": START, "user": "ann"})
    work = catch_up.plan(table.snapshot, "users")
    built = [catch_up.execute(table.store, item, ids=SystemIds()) for item in work.work]
    table.log.commit(table.snapshot, work.actions(built), operation="CATCH UP")
    declared.write_text(text.replace("columns: [user]", "columns: [place]"))
    described: Any = Table.declare(load(declared)).describe()["indexes"]
    shown = {"name": "users", "kind": "bitmap", "watermark": 0, "segments": 1, "covered_splits": 0}
    assert [{name: each[name] for name in shown} for each in described] == [shown]


def test_each_level_of_consistency_searches_what_it_sees(tmp_path: Path) -> None:
    indexes = [
        {"name": "text", "kind": "fulltext", "columns": ["word"]},
        {"name": "tags", "kind": "bitmap", "columns": ["tag"]},
    ]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string()), ("tag", pa.string())])
    table = Table.create(str(tmp_path / "words"), schema, primary_key="id", indexes=indexes)
    with table.writer() as writer:
        writer.put([{"id": 1, "word": "ebb", "tag": "x"}, {"id": 2, "word": "ebb", "tag": "x"}])
        writer.flush()
        writer.delete(1)
        writer.patch({"id": 2, "tag": "y"})

    def ids(query: str, index: str, level: str) -> list[int]:
        return sorted(table.search(query, index=index, consistency=level).column("id").to_pylist())

    levels = ("snapshot", "committed", "latest")
    assert [ids("ebb", "text", level) for level in levels] == [[], [1, 2], [2]]
    assert [ids("x", "tags", level) for level in levels] == [[], [1, 2], []]
    assert [ids("y", "tags", level) for level in levels] == [[], [], [2]]
    with pytest.raises(InvalidInput, match="returns only merged rows"):
        table.search("ebb", index="text", at=0, consistency="latest")


def test_a_search_leaves_nothing_but_its_open_searcher_which_goes_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    table = Table.create(
        str(tmp_path / "logs"), SCHEMA, indexes=[{"name": "text", "kind": "fulltext", "columns": ["path"]}]
    )
    table.append(events(3))
    for query in ("2", "1"):
        assert table.search(query, index="text").column("path").to_pylist() == [f"/{query}"]
        assert [each.name[:19] for each in temporary.iterdir()] == ["tidemark-searchers-"]
    del table
    gc.collect()
    assert list(temporary.iterdir()) == []
