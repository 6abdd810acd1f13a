"""Which catalogue goes on from which log: what is told apart by ids, and what is refused."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

import tidemark as tm
from storage_core.catalog.catalog import Catalog
from storage_core.catalog.migrations import prepare
from storage_core.catalog.schema import MARKER
from storage_core.errors import InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported
from storage_core.objectstore.meter import MeteredStore
from tests.support.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("n", pa.int64())])


def made(place: Path, versions: int) -> tm.Table:
    table = tm.Table.create(str(place), SCHEMA)
    for number in range(versions):
        table.append({"n": number})
    return table


def is_right(catalog: Catalog, uri: str, version: int) -> bool:
    checked = catalog.check(uri)
    return (checked.shown, checked.version) == ([], version)


def test_a_database_from_an_old_dump_catches_up(tmp_path: Path) -> None:
    table, file = made(tmp_path / "t", 2), tmp_path / "catalog.db"
    with tm.open_catalog(f"sqlite:///{file}") as catalog:
        catalog.refresh(table.uri)
    shutil.copy(file, tmp_path / "dump.db")
    table.append({"n": 3})
    with tm.open_catalog(f"sqlite:///{file}") as catalog:
        catalog.refresh(table.uri)
    table.append({"n": 4})
    with tm.open_catalog(f"sqlite:///{tmp_path}/dump.db") as catalog:
        assert catalog.refresh(table.uri).versions == 2
        assert is_right(catalog, table.uri, 4)


def test_a_postgresql_database_from_an_old_dump_catches_up(postgres: Postgres, tmp_path: Path) -> None:
    table, place = made(tmp_path / "t", 2), postgres.place()
    names = ("tidemark_catalog", "tables", "splits", "segments", "commits", "regions")
    with tm.open_catalog(place) as catalog, psycopg.connect(place, autocommit=True) as dump:
        catalog.refresh(table.uri)
        for name in names:
            dump.execute(f"CREATE TABLE old_{name} AS TABLE {name}")
        table.append({"n": 3})
        catalog.refresh(table.uri)
        for name in names:
            dump.execute(f"TRUNCATE {name}")
            dump.execute(f"INSERT INTO {name} TABLE old_{name}")
        table.append({"n": 4})
        assert catalog.refresh(table.uri).versions == 2
        assert is_right(catalog, table.uri, 4)


def test_a_log_that_was_put_back_is_loaded_again_whether_it_went_on_or_not(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    shutil.copytree(tmp_path / "t", tmp_path / "backup")
    table.append({"n": 3})
    catalog.refresh(table.uri)
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "backup", tmp_path / "t")
    found = catalog.refresh(table.uri)
    assert (found.outcome, found.reason) == ("loaded", "its log ends before version 3, which the catalogue knows")
    assert is_right(catalog, table.uri, 2)
    table = tm.Table.open(table.uri)
    for number in range(2):
        table.append({"n": number})
    catalog.refresh(table.uri)
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "backup", tmp_path / "t")
    table = tm.Table.open(table.uri)
    for number in range(3):
        table.append({"n": -number})
    found = catalog.refresh(table.uri)
    assert (found.outcome, found.reason) == ("loaded", "its version 4 is another commit by now")
    assert is_right(catalog, table.uri, 5)


def test_a_table_that_was_moved_is_known_by_its_id_and_a_copy_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "old", 2)
    catalog.refresh(table.uri, name="first")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    new = tm.Table.open(str(tmp_path / "new")).uri
    with pytest.raises(InvalidInput, match="where it still is; one of them is a copy"):
        catalog.refresh(new)
    assert [each.uri for each in catalog.tables()] == [table.uri]
    shutil.rmtree(tmp_path / "old")
    assert catalog.refresh(new, name="second").reason == f"it was at {table.uri}"
    assert [(each.name, each.uri) for each in catalog.tables()] == [("second", new)]
    shutil.copytree(tmp_path / "new", tmp_path / "third")
    third = tm.Table.open(str(tmp_path / "third")).uri
    catalog.rebuild(third)
    assert [each.uri for each in catalog.tables()] == [third]
    assert is_right(catalog, third, 2)


def test_a_database_of_another_table_is_refused_until_it_is_made_again(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    catalog.refresh(table.uri, name="t")
    shutil.rmtree(tmp_path / "t")
    other = made(tmp_path / "t", 5)
    for ask in (lambda: catalog.refresh(other.uri), lambda: catalog["t"]):
        with pytest.raises(InvalidInput, match=f"knows the table .*, found {other.snapshot.table_id}; where that is"):
            ask()
    assert catalog.check("t").shown[0].endswith(f"of the table there {other.snapshot.table_id}")
    assert catalog.rebuild(other.uri).version == 5
    assert is_right(catalog, other.uri, 5)
    assert len(catalog.tables()) == 1


def test_tables_beside_one_another_are_each_at_their_version(catalog: Catalog, tmp_path: Path) -> None:
    one, other = made(tmp_path / "a" / "t", 1), made(tmp_path / "b" / "t", 3)
    for each in (one, other):
        catalog.refresh(each.uri)
    catalog.rebuild(one.uri)
    assert is_right(catalog, one.uri, 1)
    assert is_right(catalog, other.uri, 3)
    with pytest.raises(InvalidInput, match="several tables of the catalogue"):
        catalog.check("t")
    with pytest.raises(NotFound, match=r"is no table of the catalogue .*which has: t, t"):
        catalog["nothing"]


def test_reading_through_it_sees_the_head_and_lists_nothing(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 12)
    catalog.refresh(table.uri, name="t")
    table.append({"n": 100})
    opened = catalog["t"]
    assert opened.version == 13
    assert opened.scan().to_arrow().num_rows == 13
    store = opened.store
    assert isinstance(store, MeteredStore)
    assert store.requests["list"] == 0
    opened.append({"n": 101})
    assert tm.Table.open(table.uri).version == 14


def test_a_table_with_a_damaged_manifest_comes_in_by_what_replaces_it(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 12)
    (manifest,) = [info.key for info in table.store.list("_transaction_log/manifests/")]
    (tmp_path / "t" / manifest).write_bytes(b"torn")
    assert catalog.refresh(table.uri).outcome == "loaded"
    assert catalog.sql("SELECT count(*) FROM splits WHERE removed_version IS NULL")[1] == [(12,)]


def test_a_check_tells_what_differs(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 3)
    catalog.refresh(table.uri)
    for damage in ("UPDATE splits SET bytes = 1 WHERE added_version = 1", "DELETE FROM splits WHERE added_version = 2"):
        catalog.database.write(partial(sa.Connection.exec_driver_sql, statement=damage))
    found = catalog.check(table.uri)
    assert found.differences == 3
    assert "bytes is 1, in the log" in "\n".join(found.shown)
    assert "2 splits are live, in the log 3" in found.shown
    catalog.rebuild(table.uri)
    assert is_right(catalog, table.uri, 3)


def test_a_statement_of_anybody_changes_nothing(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    catalog.refresh(table.uri)
    for text in (
        "DELETE FROM splits",
        "SELECT 1; DELETE FROM splits",
        "COMMIT; DELETE FROM splits",
        "CREATE TABLE more (n int)",
        "SELECT nothing FROM splits",
        "",
    ):
        with pytest.raises(InvalidInput):
            catalog.sql(text)
    assert catalog.sql("SELECT count(*), '50%' FROM splits WHERE split_id LIKE '%parquet'") == (
        catalog.sql("SELECT count(*), '50%' FROM splits")[0],
        [(2, "50%")],
    )
    assert is_right(catalog, table.uri, 2)
    assert catalog.refresh(table.uri).outcome == "current"


def test_a_statement_of_anybody_touches_no_other_file_and_leaves_the_connection_as_it_was(tmp_path: Path) -> None:
    table, other = made(tmp_path / "t", 2), tmp_path / "other.db"
    with tm.open_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        catalog.refresh(table.uri)
        for text in (f"ATTACH '{other}' AS o", "PRAGMA query_only=0", "SAVEPOINT s", "COMMIT"):
            with pytest.raises(InvalidInput, match="not authorized; here statements ask for rows, with select"):
                catalog.sql(text)
        assert catalog.sql("SELECT value FROM json_each('[7]')")[1] == [(7,)]
        table.append({"n": 3})
        assert catalog.refresh(table.uri).outcome == "refreshed"
    assert not other.exists()


def test_a_page_has_rows_and_says_of_which_version(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    catalog.refresh(table.uri)
    assert catalog.changes_since(table.uri, 2, limit=1).version == 2
    with pytest.raises(NotFound, match="the catalogue knows versions up to 2, not 99; refresh it"):
        catalog.changes_since(table.uri, 99)
    for unknown in ("nope = 1", tm.col("nope") == 1, "n = 1 and lower(nope) = 'x'"):
        with pytest.raises(InvalidInput, match=r"unknown column 'nope'; the table has \['n'\]"):
            catalog.splits_between(table.uri, filter=unknown)
    with pytest.raises(InvalidInput, match="at least 1 row, found limit=0"):
        catalog.compaction_candidates(table.uri, limit=0)


def test_a_foreign_database_is_refused_and_left_as_it_is(database_url: str) -> None:
    engine = sa.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE commits (sha text)")
    with pytest.raises(
        InvalidInput, match=r"expected an empty database .*holds the tables 'commits'; give the catalogue"
    ):
        tm.open_catalog(database_url)
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == ["commits"]
        connection.exec_driver_sql("DROP TABLE commits")
        connection.exec_driver_sql("CREATE TABLE tidemark_catalog (format text, version int)")
        connection.exec_driver_sql("INSERT INTO tidemark_catalog VALUES ('another', 1)")
    with pytest.raises(InvalidInput, match=r"its table tidemark_catalog holds \[\('another', 1\)\]"):
        tm.open_catalog(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE tidemark_catalog SET format = 'tidemark-catalog'")
    with pytest.raises(InvalidInput, match="its table tables lacks the columns"):
        tm.open_catalog(database_url)
    engine.dispose()


def test_a_catalogue_comes_forward_by_steps_and_is_refused_by_an_older_release(
    database_url: str, tmp_path: Path
) -> None:
    table = made(tmp_path / "t", 2)
    taken: list[int] = []

    def step(number: int) -> object:
        def add(connection: sa.Connection) -> None:
            taken.append(number)
            connection.exec_driver_sql(f"ALTER TABLE tables ADD COLUMN note_{number} text")

        return add

    with tm.open_catalog(database_url) as catalog:
        catalog.refresh(table.uri)
        steps = {2: step(2), 3: step(3)}
        for _ in range(2):
            prepare(catalog.database, must_exist=True, steps=steps)  # type: ignore[arg-type]
        assert taken == [2, 3]
        assert is_right(catalog, table.uri, 2)
        with catalog.database.read() as connection:
            assert connection.execute(sa.select(MARKER.c.version)).scalar_one() == 3
    with pytest.raises(Unsupported, match="the catalogue is of version 3, this release knows 1; upgrade"):
        tm.open_catalog(database_url)


@pytest.mark.parametrize(
    ("url", "kind", "says"),
    [
        ("nonsense", InvalidInput, "is no URL of a database"),
        ("mysql://root:secret@localhost/x", InvalidInput, "a catalogue is in SQLite or PostgreSQL"),
        ("sqlite://", InvalidInput, "name a file"),
        ("sqlite:////nowhere/at/all/catalog.db", NotFound, "there is no folder"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", Unavailable, "try again when the database can be reached"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_without_its_password(
    url: str, kind: type[TidemarkError], says: str
) -> None:
    with pytest.raises(kind, match=says) as refused:
        tm.open_catalog(url)
    assert "secret" not in str(refused.value)


def test_a_folder_is_no_catalogue(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=f"this is a folder; name a file in it, as in sqlite:///{tmp_path}/catalog.db"
    ):
        tm.open_catalog(f"sqlite:///{tmp_path}")


def test_a_catalogue_that_has_to_be_there_is_not_made(database_url: str, tmp_path: Path) -> None:
    for place in (database_url, f"sqlite:///{tmp_path}/none.db"):
        with pytest.raises(NotFound, match="there is no catalogue; make it with: tidemark catalog refresh"):
            tm.open_catalog(place, must_exist=True)
    assert not (tmp_path / "none.db").exists()


def test_a_damaged_file_and_a_busy_one_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(tm.errors.Corrupt, match="delete the file, or name another, and refresh it"):
        tm.open_catalog(f"sqlite:///{tmp_path}/damaged.db")
    file = tmp_path / "busy.db"
    table = made(tmp_path / "t", 1)
    pauses: list[float] = []

    class Waits:
        def now_ms(self) -> int:
            return 0

        def sleep_ms(self, duration_ms: float) -> None:
            pauses.append(duration_ms)
            if len(pauses) == 2:
                holder.rollback()

    with tm.open_catalog(f"sqlite:///{file}?timeout=0.01", clock=Waits()) as catalog:
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert catalog.refresh(table.uri).outcome == "loaded"
        assert len(pauses) == 2
        holder.close()


WITHOUT = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
import tidemark as tm, pyarrow as pa
table = tm.Table.create("memory://t", pa.schema([("n", pa.int64())]))
table.append({"n": 1})
assert table.scan().to_arrow().num_rows == 1
try:
    tm.open_catalog(sys.argv[2])
except tm.errors.Unavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("packages", "place"), [("sqlalchemy", "sqlite:///x.db"), ("psycopg", "postgresql://nobody@127.0.0.1:1/x")]
)
def test_without_its_packages_the_rest_works_and_it_says_how_to_get_them(
    packages: str, place: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WITHOUT, packages, place]
    ended = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert "needs packages: pip install '.[catalog]' in the folder of Tidemark's source" in ended.stdout
