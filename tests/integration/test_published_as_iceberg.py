"""Iceberg readers find the rows of a scan at every published version of a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from storage_core.base.errors import Corrupt, InvalidInput, Unavailable
from storage_core.data.formats.keys import ICEBERG_PREFIX, iceberg_metadata_key
from storage_core.interop import iceberg, iceberg_manifests
from storage_core.table import Table
from tests.support import upkeep
from tests.support.published import (
    EVERY_TYPE,
    OF_EVERY_TYPE,
    SCHEMA,
    Rows,
    by_daft,
    by_duckdb,
    by_polars_as_iceberg,
    by_pyiceberg,
    made,
    plain,
)
from tests.support.s3_server import REGION, S3Server

Step = Callable[[], object]


def _history(uri: str) -> Iterator[Table]:
    """Make a table at `uri`, and yield it after each change of its rows and columns."""
    table = _table(uri)
    numbers = count(0, 30)

    def append(**more: object) -> None:
        table.append(made(table.refresh(), next(numbers), more=more))

    def compact() -> None:
        upkeep.compact(table.refresh())

    steps: list[Step] = [
        append,
        append,
        lambda: table.delete("n % 7 = 3"),
        compact,
        append,
        lambda: table.add_column("note", "string"),
        partial(append, note="first"),
        lambda: table.delete("note = 'first' and n % 5 = 0"),
        compact,
        lambda: table.widen_column("n", "long"),
        append,
        compact,
        lambda: table.add_column("level", "int", default=7),
        partial(append, level=1),
        lambda: table.update({"level": 2}, "true"),
        compact,
        lambda: table.rename_column("x", "y"),
        partial(append, y=0.5),
        lambda: table.drop_column("price"),
        append,
        lambda: table.add_column("price", "string"),
        partial(append, price="dear"),
        compact,
        lambda: table.restore(9),
        append,
    ]
    for step in steps:
        step()
        yield table.refresh()


def _table(uri: str, schema: pa.Schema = SCHEMA) -> Table:
    settings = {"publish": "iceberg", "checkpoint.interval": "4"}
    return Table.create(uri, schema, time_column="at", window="1h", sort_schema="host|timestamp/V2", settings=settings)


class Story:
    """A table with a history. The test publishes the table after each change.

    The object also contains the rows of a scan at each published version.
    """

    def __init__(self, uri: str) -> None:
        self.waited: dict[int, str] = {}
        for table in _history(uri):
            done = table.publish("iceberg")
            self.location = str(done.location)
            if done.waits_for is not None:
                self.waited[table.version] = done.waits_for
        self.versions = [each.snapshot_id for each in _shown(self.location).metadata.snapshots]
        scans = [table.scan(at=version).to_arrow() for version in self.versions]
        self.rows: list[Rows] = list(map(plain, scans))
        self.names = [each.column_names for each in scans]


def _shown(location: str) -> StaticTable:
    return StaticTable.from_metadata(location)


@pytest.fixture(autouse=True)
def _planned_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyIceberg plan the scan. Without the package for its own planner, Polars would warn."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(str(tmp_path_factory.mktemp("published") / "a table"))


def test_each_version_without_hidden_rows_is_the_snapshot_of_that_number(story: Story) -> None:
    assert len(story.versions) > 12
    assert sorted({*story.versions, *story.waited}) == [*range(1, 25)]
    assert "rows of 6 splits are deleted, and such splits are published in Iceberg format" in story.waited[3]
    assert "have the default of column 'level' only in the log" in story.waited[13]


def test_pyiceberg_finds_the_same_rows_at_every_version(story: Story) -> None:
    for version, names, rows in zip(story.versions, story.names, story.rows, strict=True):
        assert by_pyiceberg(story.location, version, names) == rows


def test_polars_finds_the_same_rows_at_every_version(story: Story) -> None:
    for version, names, rows in zip(story.versions, story.names, story.rows, strict=True):
        assert by_polars_as_iceberg(story.location, version, names) == rows


def test_duckdb_finds_the_same_rows_at_every_version(story: Story) -> None:
    assert by_duckdb("iceberg", story.location, [*zip(story.versions, story.names, strict=True)]) == story.rows


def test_daft_which_maps_no_names_finds_the_same_rows_as_the_table_declares_iceberg(story: Story) -> None:
    last = story.versions.index(17)  # the next version has all-null columns, at which Daft 0.7 fails
    versions = [*zip(story.versions, story.names, strict=True)][: last + 1]
    assert by_daft("iceberg", story.location, versions) == story.rows[: last + 1]


def test_a_table_is_shown_from_its_newest_version_on_and_publishing_again_does_nothing(tmp_path: Path) -> None:
    table = _table(str(tmp_path / "t"))
    table.append(made(table, 0))
    table.append(made(table, 30))
    first, second = table.publish("iceberg"), table.publish("iceberg")
    assert (first.version, first.shown_as, first.commits) == (2, 2, 1)
    assert (second.version, second.shown_as, second.commits, second.location) == (2, 2, 0, first.location)
    table.alter({"gc.states": 3})
    assert table.publish("iceberg").commits == 0, "what changes nothing that is shown has no snapshot"
    assert table.publish("iceberg").version == table.version


def test_a_version_with_hidden_rows_waits_for_a_compaction_and_is_no_error(tmp_path: Path) -> None:
    table = _table(str(tmp_path / "t"))
    table.append(made(table, 0))
    table.append(made(table, 30))
    table.publish("iceberg")
    before = plain(table.scan().to_arrow())
    table.delete("n % 3 = 0")
    done = table.publish("iceberg")
    assert (done.version, done.shown_as, done.commits) == (2, 2, 0)
    assert done.waits_for is not None
    assert "format version 2 only after a compaction. Compact their windows" in done.waits_for
    assert by_pyiceberg(str(done.location), 2, SCHEMA.names) == before
    upkeep.compact(table)
    done = table.refresh().publish("iceberg")
    assert (done.version, done.waits_for) == (4, None)
    assert by_pyiceberg(str(done.location), 4, SCHEMA.names) == plain(table.scan().to_arrow())


def test_a_table_is_shown_as_delta_and_as_iceberg_and_found_by_its_folder(tmp_path: Path) -> None:
    table = _table(str(tmp_path / "t"))
    table.append(made(table, 0))
    for name in ("delta", "iceberg"):
        assert table.publish(name).version == 1
    expected = plain(table.scan().to_arrow())
    assert plain(pl.read_delta(table.uri).to_arrow().select(SCHEMA.names)) == expected
    assert plain(_shown(str(tmp_path / "t" / "_iceberg")).scan().to_arrow()) == expected


def test_of_a_keyed_table_the_base_is_shown(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema, primary_key="id")
    for value, ids in (("a", range(9)), ("b", [1])):
        with table.refresh().writer() as writer:
            writer.put([{"id": n, "v": value} for n in ids])
            writer.flush()
        upkeep.merge(table.refresh())
        upkeep.compact(table.refresh())
    done = table.refresh().publish("iceberg")
    assert done.waits_for is None
    found = _shown(str(done.location)).scan().to_arrow().to_pylist()
    assert sorted(map(tuple, map(dict.values, found))) == [(n, "b" if n == 1 else "a") for n in range(9)]


def test_values_of_every_type_and_of_partitions_are_read_as_they_are(tmp_path: Path) -> None:
    schema = EVERY_TYPE.append(pa.field("a name", pa.string()))
    schema = schema.append(pa.field("of", pa.list_(pa.struct([("x y", pa.string())]))))
    table = Table.create(str(tmp_path / "t"), schema, partition_by="a name")
    rows = [{**OF_EVERY_TYPE, "a name": name, "of": [{"x y": name}]} for name in ("a/b", "50 %#?", "ü+", "")]
    nothing: dict[str, object] = {
        **dict.fromkeys(schema.names),
        "of": [],
    }  # pyiceberg reads a null list of structures as an empty list
    table.append(pa.Table.from_pylist([*rows, nothing], schema=schema))
    done = table.publish("iceberg")
    for step in (lambda: table.append(rows[:1]), lambda: table.add_column("n", "int"), lambda: table.append(rows[:1])):
        expected = _plainly(table.scan().to_arrow())
        assert _plainly(_shown(str(done.location)).scan().to_arrow()) == expected
        assert _plainly(pl.scan_iceberg(str(done.location)).collect().to_arrow()) == expected
        step()
        done = table.refresh().publish("iceberg")


def _plainly(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


def test_bounds_of_iceberg_prune_no_row_and_counts_are_right(tmp_path: Path) -> None:
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
    location = str(table.publish("iceberg").location)
    for condition, count_ in (
        ("x is nan", 1),
        ("x = 0", 1),
        ("x > 100", 1),
        ("s > 'zz'", 2),
        ("t >= '2024-01-01T00:00:00.000999+00:00'", 1),
        ("t <= '1969-12-31T23:59:59.999999+00:00'", 1),
        ("t is null", 1),
        ("d > 1", 1),
        ("d < -1", 1),
    ):
        scan = _shown(location).scan(row_filter=condition)
        assert (scan.to_arrow().num_rows, scan.count()) == (count_, count_), condition
    assert pl.scan_iceberg(location).filter(pl.col("x") == 0).collect().height == 1
    assert pl.scan_iceberg(location).select(pl.len()).collect().item() == 3


def test_metadata_of_others_is_left_alone_and_a_lost_manifest_is_named(tmp_path: Path) -> None:
    table = _table(str(tmp_path / "t"))
    table.append(made(table, 0))
    done = table.publish("iceberg")
    (listed,) = (tmp_path / "t" / ICEBERG_PREFIX).glob("snap-*")
    data = listed.read_bytes()
    listed.unlink()
    with pytest.raises(Corrupt, match=r"snap-1-.*missing.*Remove the folder `_iceberg` and publish again"):
        table.publish("iceberg")
    listed.write_bytes(data)
    metadata = json.loads(Path(str(done.location)).read_text())
    del metadata["snapshots"][0]["summary"]["tidemark.published-at-ms"]
    (tmp_path / "t" / iceberg_metadata_key(2)).write_text(json.dumps(metadata))
    with pytest.raises(
        Corrupt, match=r"v2\.metadata\.json: another program wrote this object.*Remove the folder `_iceberg`"
    ):
        table.publish("iceberg")


def test_a_table_that_was_moved_is_published_anew_where_it_is(tmp_path: Path) -> None:
    table = _table(str(tmp_path / "t"))
    table.append(made(table, 0))
    table.publish("iceberg")
    (tmp_path / "t").rename(tmp_path / "moved")
    moved = Table.open(str(tmp_path / "moved"))
    done = moved.publish("iceberg")
    assert (done.version, done.commits) == (1, 1)
    assert [each.snapshot_id for each in _shown(str(done.location)).metadata.snapshots] == [1]
    assert by_pyiceberg(str(done.location), 1, SCHEMA.names) == plain(moved.scan().to_arrow())


def test_a_shallow_clone_is_refused_and_a_deep_one_is_published_by_itself(tmp_path: Path) -> None:
    table = _table(str(tmp_path / "t"))
    table.append(made(table, 0))
    table.publish("iceberg")
    table.clone(str(tmp_path / "shallow"))
    with pytest.raises(InvalidInput, match="Clone the table with --deep"):
        Table.open(str(tmp_path / "shallow")).publish("iceberg")
    table.clone(str(tmp_path / "deep"), deep=True)
    done = Table.open(str(tmp_path / "deep")).publish("iceberg")
    assert done.shown_as == 0
    assert by_pyiceberg(str(done.location), 0, SCHEMA.names) == plain(table.scan().to_arrow())
    assert by_polars_as_iceberg(str(done.location), 0, SCHEMA.names) == plain(table.scan().to_arrow())


def test_without_pyiceberg_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(str(tmp_path / "t"))
    for module in (iceberg, iceberg_manifests):
        monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setitem(sys.modules, "pyiceberg.partitioning", None)
    with pytest.raises(Unavailable, match=r"publishing as Iceberg needs packages: pip install '\.\[iceberg\]'"):
        table.publish("iceberg")


def test_a_table_on_s3_is_read_as_iceberg_there(s3_server: S3Server) -> None:
    uri = s3_server.uri("published-as-iceberg")
    table = Table.create(uri, SCHEMA, time_column="at", window="1h", sort_schema="host|timestamp/V2")
    table.append(made(table, 0))
    done = table.publish("iceberg")
    options = {"s3.endpoint": s3_server.endpoint, "s3.region": REGION}  # the environment has all other options
    shown = StaticTable.from_metadata(str(done.location), options)
    assert plain(shown.scan().to_arrow().select(SCHEMA.names)) == plain(table.scan().to_arrow())


def test_what_is_inside_of_columns_is_found_after_changes_of_columns(tmp_path: Path) -> None:
    inside = pa.struct([("q", pa.int64()), ("r", pa.list_(pa.string()))])
    schema = pa.schema([("a", pa.int64()), ("s", inside), ("m", pa.map_(pa.string(), pa.int64()))])
    table = Table.create(str(tmp_path / "t"), schema)

    def append(**more: object) -> None:
        known = {"s": {"q": 1, "r": ["z"]}, "m": [("k", 2)], **more}
        table.append([{name: known.get(name, 0) for name in table.refresh().schema.names}])

    steps: list[Step] = [
        append,
        lambda: table.add_column("c", "long"),
        append,
        lambda: table.restore(1),
        lambda: table.add_column("d", "string"),
        partial(append, d="d"),
        lambda: table.drop_column("s"),
        lambda: table.add_column("s", "long"),
        partial(append, d="e", s=7),
        lambda: table.rename_column("m", "n"),
    ]
    location = ""
    for step in steps:
        step()
        location = str(table.refresh().publish("iceberg").location)
    shown = _shown(location)
    assert [each.snapshot_id for each in shown.metadata.snapshots] == [*range(1, 11)]
    for version in range(1, 11):
        expected = _plainly(table.scan(at=version).to_arrow())
        assert _plainly(shown.scan(snapshot_id=version).to_arrow()) == expected
        assert _plainly(pl.scan_iceberg(location, snapshot_id=version).collect().to_arrow()) == expected
