"""Delta readers find the rows of a scan at every published version of a table."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.change.statement import expr
from storage_core.data.formats.keys import delta_checkpoint_key, delta_commit_key
from storage_core.interop.delta_mirror import EVERY
from storage_core.table import Table
from tests.support import upkeep
from tests.support.published import (
    EVERY_TYPE,
    OF_EVERY_TYPE,
    SCHEMA,
    START,
    Rows,
    by_daft,
    by_delta_rs,
    by_duckdb,
    by_polars,
    by_spark,
    history,
    made,
    ordered,
    plain,
    shown_versions,
)
from tests.support.s3_server import S3Server
from tests.support.scale import scaled

MAPPED = 46
"""In this version and later versions, Delta needs name mapping, and Polars refuses the table."""


class Story:
    """A table with a long history. The test publishes the table after each change.

    The object also contains the rows of a scan at each Delta version.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.waited: dict[int, str] = {}
        for table in history(uri):
            done = table.publish("delta")
            if done.waits_for is not None:
                self.waited[table.version] = done.waits_for
        self.versions = shown_versions(uri)
        scans = [table.scan(at=version).to_arrow() for version in self.versions]
        self.rows: list[Rows] = list(map(plain, scans))
        self.names = [each.column_names for each in scans]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(str(tmp_path_factory.mktemp("published") / "t"))


def test_each_version_that_can_be_shown_is_a_delta_version(story: Story) -> None:
    newest = story.versions[-1]
    assert len(story.versions) > 50
    assert sorted({*range(1, newest + 1)} - {*story.versions}) == sorted(story.waited)
    assert "have the default of column 'level' only in the log" in story.waited[25]
    assert "has int32 in column 'n', but the table has int64" in story.waited[37]


def test_delta_rs_finds_the_same_rows_at_every_version(story: Story) -> None:
    for version, rows in enumerate(story.rows):
        assert by_delta_rs(story.uri, version, story.names[version]) == rows


def test_polars_finds_the_same_rows_at_every_version_before_names_are_mapped(story: Story) -> None:
    for version, rows in enumerate(story.rows):
        if story.versions[version] <= MAPPED:
            assert by_polars(story.uri, version, story.names[version]) == rows
        else:
            with pytest.raises(Exception, match="columnMapping"):
                by_polars(story.uri, version, story.names[version])


def test_duckdb_finds_the_same_rows_at_every_version(story: Story) -> None:
    assert by_duckdb("delta", story.uri, [*enumerate(story.names)]) == story.rows


def test_spark_finds_the_same_rows_streams_what_changed_and_refuses_to_write(story: Story, tmp_path: Path) -> None:
    streamed = _table(tmp_path)
    publish_each(
        streamed,
        lambda: streamed.append(made(streamed, 0)),
        lambda: streamed.append(made(streamed, 30)),
        lambda: streamed.delete("n % 7 = 3"),
        lambda: streamed.delete("n % 5 = 3"),  # the changed files already have a deletion vector
        lambda: upkeep.compact(streamed.refresh()),
        lambda: streamed.refresh().update({"host": expr("coalesce(host, '') || '!'")}, "n % 17 = 1"),
        lambda: streamed.append(made(streamed.refresh(), 60)),
    )
    last = len(story.versions) - 1
    chosen = sorted({1, *range(last, 1, -max(1, last // scaled(1)))})
    found = by_spark(story.uri, chosen, [story.names[each] for each in chosen], streamed.uri)
    assert [ordered(each) for each in found["rows"]] == [story.rows[each] for each in chosen]
    condition = "n % 2 = 0 and \"at\" >= timestamptz '2024-02-29 11:00:00Z'"
    assert found["counted"] == _count(Table.open(story.uri), condition)
    assert found["refused"] == ["DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"] * 2
    assert found["left"] == found["there"]
    assert sum(found["there"].values()) == streamed.refresh().snapshot.rows
    assert found["added"] == [*range(90)], "what deletes, updates and a compaction wrote comes no second time"


def publish_each(table: Table, *changes: Callable[[], object]) -> None:
    for change in changes:
        change()
        table.refresh().publish()


def _table(tmp_path: Path, **publish: object) -> Table:
    return Table.create(
        str(tmp_path / "t"),
        SCHEMA,
        time_column="at",
        window="1h",
        sort_schema="host|timestamp/V2",
        settings={"publish": {"delta": publish}},
    )


def test_a_table_is_shown_from_its_newest_version_on_and_publishing_again_does_nothing(tmp_path: Path) -> None:
    table = _table(tmp_path)
    table.append(made(table, 0))
    table.append(made(table, 30))
    first, second = table.publish(), table.publish()
    assert (first.version, first.shown_as, first.commits) == (2, 0, 1)
    assert (second.version, second.shown_as, second.commits) == (2, 0, 0)
    table.alter({"gc.states": 3})
    assert table.publish().commits == 0, "what changes nothing that is shown has no commit"
    assert table.publish().version == table.version


def test_without_vectors_a_table_is_shown_at_compaction_points_to_readers_that_know_of_none(tmp_path: Path) -> None:
    table = _table(tmp_path, vectors="none")
    table.append(made(table, 0))
    table.append(made(table, 30))
    table.publish()
    before = plain(table.scan().to_arrow())
    table.delete("n % 3 = 0")
    done = table.publish()
    assert done.version == 2
    assert done.waits_for is not None
    assert "`vectors: none` publishes such splits only after a compaction. Compact their windows" in done.waits_for
    assert plain(deltalake.DeltaTable(table.uri).to_pyarrow_table().select(SCHEMA.names)) == before
    assert by_daft("delta", table.uri, [(1, SCHEMA.names)]) == [before]
    upkeep.compact(table)
    assert table.refresh().publish().waits_for is None
    shown = deltalake.DeltaTable(table.uri)
    assert shown.protocol().min_reader_version == 1
    assert plain(shown.to_pyarrow_table().select(SCHEMA.names)) == plain(table.scan().to_arrow())


def test_of_a_keyed_table_the_base_is_shown(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())]), primary_key="id"
    )
    with table.writer() as writer:
        writer.put([{"id": n, "v": "a"} for n in range(9)])
        writer.flush()
    upkeep.merge(table)
    with table.refresh().writer() as writer:
        writer.put([{"id": 1, "v": "b"}])
        writer.flush()
    table.publish()
    assert pl.read_delta(table.uri)["v"].to_list() == ["a"] * 9
    upkeep.merge(table)
    table.refresh().publish()
    assert sorted(pl.read_delta(table.uri).rows()) == [(n, "b" if n == 1 else "a") for n in range(9)]


def test_partitioned_tables_and_names_that_delta_has_to_map_are_read(tmp_path: Path) -> None:
    schema = pa.schema(
        [("a name", pa.string()), ("place", pa.struct([("x y", pa.int32())])), ("of", pa.list_(pa.string()))]
    )
    table = Table.create(str(tmp_path / "t"), schema, partition_by="a name")
    table.append(
        [{"a name": name, "place": {"x y": n}, "of": [name]} for n, name in enumerate(["a/b", "50 %", "ü+", ""])]
    )
    table.publish()
    assert by_delta_rs(table.uri, 0, schema.names) == plain(table.scan().to_arrow())


def test_a_column_with_fields_of_its_own_is_read(tmp_path: Path) -> None:
    table = _with_fields(tmp_path)
    assert table.publish().shown_as == 0
    assert _found_by_all(table) == [plain(table.scan().to_arrow())] * 2
    over = pl.scan_delta(table.uri).filter(pl.col("n") > 0).collect()
    assert over["place"].to_list() == [None]


def test_a_log_that_counts_nulls_of_columns_with_fields_is_read_again_from_the_next_checkpoint_on(
    tmp_path: Path,
) -> None:
    table = _with_fields(tmp_path)
    table.publish()
    first = tmp_path / "t" / delta_commit_key(0)
    first.write_text(first.read_text().replace(r"\"nullCount\":{", r"\"nullCount\":{\"place\":1,"))
    with pytest.raises(Exception, match="nullCount"):
        by_delta_rs(table.uri, 0, table.schema.names)
    for n in range(2, 2 + EVERY):
        table.append([{"n": n}])
        table.publish()
    assert _found_by_all(table) == [plain(table.scan().to_arrow())] * 2


def _with_fields(tmp_path: Path) -> Table:
    fields = pa.struct([("x", pa.int32()), ("in", pa.struct([("y", pa.string())]))])
    schema = pa.schema(
        {
            "n": pa.int64(),
            "ok": pa.bool_(),  # Delta has null counts for this type, but no bounds
            "place": fields,
            "of": pa.list_(fields),
            "by": pa.map_(pa.string(), fields),
        }
    )
    table = Table.create(str(tmp_path / "t"), schema)
    one = {"x": 1, "in": {"y": "a"}}
    rows = [{"n": 0, "ok": True, "place": one, "of": [one, None], "by": [("a", one)]}, {"n": 1}]
    table.append(pa.Table.from_pylist(rows, schema=schema))
    return table


def _found_by_all(table: Table) -> list[Rows]:
    newest = deltalake.DeltaTable(table.uri).version()
    return [read(table.uri, newest, table.schema.names) for read in (by_delta_rs, by_polars)]


@pytest.mark.parametrize(
    ("column", "deleted", "write_anew"),
    [
        ("s", "n > 0 and n < 3", upkeep.compact),
        ("ts", "n = 2", lambda table: table.update({"n": expr("n")}, "ts is not null")),
    ],
)
def test_deleted_rows_that_polars_would_show_wait_until_the_others_are_written_anew(
    tmp_path: Path, column: str, deleted: str, write_anew: Callable[[Table], object]
) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
    table = Table.create(str(tmp_path / "t"), schema, partition_by=column)
    rows = [{"n": n, "s": "a b" if n < 3 else "c", "ts": START if n < 3 else None} for n in range(6)]
    table.append(pa.Table.from_pylist(rows, schema=schema))
    table.delete("n = 3")
    table.publish()
    assert _found_by_all(table) == [plain(table.scan().to_arrow())] * 2, "a partition of a plain name waits for nothing"
    before = plain(table.scan().to_arrow())
    table.delete(deleted)
    waiting = table.publish()
    assert (waiting.version, waiting.commits) == (2, 0)
    assert waiting.waits_for is not None
    assert "1 split with a `%` in its key" in waiting.waits_for
    assert _found_by_all(table) == [before] * 2
    write_anew(table)
    assert table.refresh().publish().waits_for is None
    assert _found_by_all(table) == [plain(table.scan().to_arrow())] * 2


def test_bounds_of_delta_prune_no_row(tmp_path: Path) -> None:
    schema = pa.schema(
        [("x", pa.float64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(30, 20))]
    )
    table = Table.create(str(tmp_path / "t"), schema)
    for row in (
        {"x": float("nan"), "s": "\U0010ffff" * 40, "t": "2024-01-01T00:00:00.000999Z", "d": "1.00000000000000000001"},
        {"x": -0.0, "s": "z" * 40, "t": "1969-12-31T23:59:59.999999Z", "d": "-1.00000000000000000001"},
        {"x": float("inf"), "s": "", "t": None, "d": None},
    ):
        table.append(pa.table({name: pa.array([value]).cast(schema.field(name).type) for name, value in row.items()}))
    table.publish()
    for condition in (
        "isnan(x)",
        "x = 0",
        "x > 1e300",
        "s > 'zz'",
        "t >= timestamptz '2024-01-01 00:00:00.000999Z'",
        "t <= timestamptz '1969-12-31 23:59:59.999999Z'",
        "d > 1",
        "d < -1",
    ):
        shown = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.uri))
        found = pa.table(
            shown.execute(f"SELECT count(*) AS c FROM t WHERE {condition.replace('timestamptz', 'timestamp')}")
        )
        assert found["c"].to_pylist() == [_count(table, condition)]


_ABOVE = ["\U0001f600", "\U00020bb7\u91ce\u5bb6", "\U000e0101", "\U0010fffe"]
"""Text of the planes 1, 2, 14 and 16."""


@pytest.mark.parametrize("padding", ["", "x" * 31], ids=["whole", "cut"])
@pytest.mark.parametrize("text", _ABOVE, ids=ascii)
def test_readers_find_rows_by_text_and_columns_above_the_basic_plane(tmp_path: Path, text: str, padding: str) -> None:
    value = padding + text + padding
    table = Table.create(str(tmp_path / "t"), pa.schema([("s", pa.string()), (_ABOVE[1], pa.string())]))
    table.append([{"s": value, _ABOVE[1]: "a"}])
    table.append([{"s": "a", _ABOVE[1]: value}])
    table.publish()
    assert "\\ud" not in (tmp_path / "t" / delta_commit_key(0)).read_text("utf-8")
    assert _found_by_text(table.uri, value) == [1, 1, 1]
    assert pl.scan_delta(table.uri).filter(pl.col(_ABOVE[1]) == value).collect().height == 1


def test_a_mirror_with_escaped_text_is_written_anew_by_the_next_publication(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("s", pa.string())]))
    for value in (_ABOVE[1], "plain"):
        table.append([{"s": value}])
    table.publish()
    first = tmp_path / "t" / delta_commit_key(0)
    first.write_text(_as_before(first.read_text("utf-8")))
    assert _found_by_text(table.uri, _ABOVE[1]) != [1, 1, 1]
    again = table.publish()
    assert (again.shown_as, again.commits) == (1, 1)
    assert _found_by_text(table.uri, _ABOVE[1]) == [1, 1, 1]
    assert (tmp_path / "t" / delta_commit_key(1)).read_text("utf-8").count('"add"') == 1, "of a file without such text"
    assert table.publish().commits == 0


def _as_before(commit: str) -> str:
    """Return the commit in the form of earlier releases, with escaped text."""
    actions = [json.loads(line) for line in commit.splitlines()]
    for each in actions:
        if "add" in each:
            each["add"]["stats"] = json.dumps(json.loads(each["add"]["stats"]))
        each.get("commitInfo", {}).get("tidemark", {}).pop("encoding", None)
    return "".join(json.dumps(each) + "\n" for each in actions)


def _found_by_text(uri: str, value: str) -> list[int]:
    """Return the number of rows that delta-rs, Polars and pyarrow find with this text."""
    delta = deltalake.DeltaTable(uri)
    by_sql = deltalake.QueryBuilder().register("t", delta).execute(f"SELECT count(*) AS c FROM t WHERE s = '{value}'")
    return [
        pa.table(by_sql)["c"][0].as_py(),
        pl.scan_delta(uri).filter(pl.col("s") == value).collect().height,
        delta.to_pyarrow_dataset().filter(pc.field("s") == value).count_rows(),
    ]


def _count(table: Table, condition: str) -> int:
    return int(table.sql(f"select count(*) c from t where {condition}").to_arrow()["c"][0].as_py())


def test_a_delta_log_of_others_is_left_alone(tmp_path: Path) -> None:
    table = _table(tmp_path)
    table.append(made(table, 0))
    table.publish()
    commit = tmp_path / "t" / delta_commit_key(1)
    commit.write_text('{"commitInfo":{"timestamp":1}}\n')
    with pytest.raises(Corrupt, match=r"another program wrote this object.*Remove the folder `_delta_log`"):
        table.publish()
    with pytest.raises(InvalidInput, match=r"format is '.*'. Give delta or iceberg"):
        table.publish("hudi")


def test_a_shallow_clone_is_refused_and_a_deep_one_is_published_by_itself(tmp_path: Path) -> None:
    table = _table(tmp_path)
    table.append(made(table, 0))
    table.publish()
    table.clone(str(tmp_path / "shallow"))
    with pytest.raises(InvalidInput, match="Clone the table with --deep"):
        Table.open(str(tmp_path / "shallow")).publish()
    table.clone(str(tmp_path / "deep"), deep=True)
    deep = Table.open(str(tmp_path / "deep"))
    assert deep.publish().shown_as == 0
    assert by_delta_rs(deep.uri, 0, SCHEMA.names) == plain(table.scan().to_arrow())


def test_every_ten_delta_versions_a_checkpoint_holds_what_is_shown(tmp_path: Path) -> None:
    table = _table(tmp_path)
    for n in range(23):
        table.append(made(table, 3 * n, 3))
        if n == 5:
            table.delete("n = 4")
        table.publish()
    there = [n for n in range(25) if (tmp_path / "t" / delta_checkpoint_key(n)).exists()]
    assert there == [10, 20]
    for n in range(10):
        (tmp_path / "t" / delta_commit_key(n)).unlink()
    assert by_delta_rs(table.uri, 23, SCHEMA.names) == plain(table.scan().to_arrow())


def test_values_of_every_type_are_read_as_they_are(tmp_path: Path) -> None:
    schema = EVERY_TYPE.append(pa.field("of", pa.list_(pa.struct([("q", pa.string())]))))
    table = Table.create(str(tmp_path / "t"), schema)
    rows = [{**OF_EVERY_TYPE, "of": [{"q": "z"}]}, dict.fromkeys(schema.names)]
    table.append(pa.Table.from_pylist(rows, schema=schema))
    table.publish()
    expected = table.scan().to_arrow().to_pylist()
    shown = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.uri)).execute("SELECT * FROM t")
    assert pa.table(shown).to_pylist() == expected
    assert pl.read_delta(table.uri).to_arrow().to_pylist() == expected


def test_a_table_on_s3_is_read_as_delta_there(s3_server: S3Server, tmp_path: Path) -> None:
    uri = s3_server.uri("published-as-delta")
    table = Table.create(uri, SCHEMA, time_column="at", window="1h", sort_schema="host|timestamp/V2")
    table.append(made(table, 0))
    table.delete("n % 3 = 0")
    assert table.publish().shown_as == 0
    Table.import_from(str(tmp_path / "copy"), uri)  # copied by delta-rs
    assert plain(Table.open(str(tmp_path / "copy")).scan().to_arrow()) == plain(table.scan().to_arrow())


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        (lambda table: table.add_column("c", "int", default=5), "c", "2 splits have the default of column 'c'"),
        (lambda table: table.widen_column("a", "long"), "a", "has int32 in column 'a', but the table has int64"),
        (
            lambda table: table.widen_column("d", "timestamp"),
            "d",
            "2 splits have dates where column 'd' has timestamps",
        ),
    ],
)
def test_what_delta_cannot_show_waits_until_the_rows_are_written_anew(
    tmp_path: Path, change: Callable[[Table], object], column: str, reason: str
) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("a", pa.int32()), ("d", pa.date32())]))
    for n in range(2):
        table.append([{"a": n, "d": dt.date(2024, 1, 1 + n)}])
    table.publish()
    change(table)
    waiting = table.publish()
    assert waiting.version == 2
    assert waiting.waits_for is not None
    assert reason in waiting.waits_for
    assert by_delta_rs(table.uri, 0, ["a", "d"]) == plain(table.scan(at=2).to_arrow())
    table.update({column: expr(column)}, "true")
    done = table.refresh().publish()
    assert (done.waits_for, done.commits) == (None, 1)
    assert by_delta_rs(table.uri, 1, table.schema.names) == plain(table.scan().to_arrow())


def test_a_reason_speaks_of_one_split_as_of_one(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("d", pa.date32())]))
    table.append([{"d": dt.date(2024, 1, 1)}])
    table.widen_column("d", "timestamp")
    reason = table.publish().waits_for
    assert reason is not None
    assert reason.startswith("1 split has dates where column 'd' has timestamps. Compact its window, or")
