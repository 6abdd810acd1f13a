"""A catalog continues only with its own log, which it recognises by ids, and refuses any other log."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

import tidemark as tm
from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported
from storage_core.catalog.catalog import Catalog
from storage_core.catalog.database import prepare
from storage_core.catalog.schema import MARKER, OF_A_TABLE, SPLITS
from storage_core.data.formats.keys import version_key
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import collect
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("n", pa.int64())])


def made(place: Path, versions: int) -> tm.Table:
    table = tm.Table.create(str(place), SCHEMA)
    for number in range(versions):
        table.append({"n": number})
    return table


TAKEN_BACK = (
    "WITH a AS MATERIALIZED (SELECT set_config('role', 'none', true) r) "
    "SELECT word FROM a, ts_stat(CASE WHEN r <> '' THEN 'SELECT to_tsvector(pg_read_file(''PG_VERSION''))' END)"
)
"""A statement that undoes a `SET ROLE` and then reads a file of the server."""


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
    assert (found.outcome, found.reason) == ("loaded", "the log ends before version 3, which the catalog has")
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
    assert (found.outcome, found.reason) == ("loaded", "version 4 of the table is a different commit now")
    assert is_right(catalog, table.uri, 5)


def test_a_table_that_was_moved_is_known_by_its_id_and_a_copy_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "old", 2)
    catalog.refresh(table.uri, name="first")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    new = tm.Table.open(str(tmp_path / "new")).uri
    with pytest.raises(InvalidInput, match=r"and the table still exists there. One of the two tables is a copy"):
        catalog.refresh(new)
    assert [each.uri for each in catalog.tables()] == [table.uri]
    shutil.rmtree(tmp_path / "old")
    assert catalog.refresh(new, name="second").reason == f"the table was at {table.uri}"
    assert [(each.name, each.uri) for each in catalog.tables()] == [("second", new)]
    shutil.copytree(tmp_path / "new", tmp_path / "third")
    third = tm.Table.open(str(tmp_path / "third")).uri
    catalog.rebuild(third)
    assert [each.uri for each in catalog.tables()] == [third]
    assert is_right(catalog, third, 2)


def test_clones_are_tables_of_their_own_beside_their_source(catalog: Catalog, tmp_path: Path) -> None:
    source = made(tmp_path / "a", 2)
    source.clone(str(tmp_path / "shallow"))
    source.clone(str(tmp_path / "deep"), deep=True)
    tm.Table.open(str(tmp_path / "deep")).clone(str(tmp_path / "again"), deep=True)
    places = [tm.Table.open(str(tmp_path / name)).uri for name in ("again", "shallow", "a", "deep")]
    for uri in places:
        assert catalog.refresh(uri).outcome == "loaded"
    assert len({each.table_id for each in catalog.tables()}) == 4
    for uri in places:
        tm.Table.open(uri).append({"n": 9})
        assert catalog.refresh(uri).outcome == "refreshed"
        assert is_right(catalog, uri, catalog[uri].version)
        assert catalog.rebuild(uri).outcome == "loaded"
    shutil.move(tmp_path / "deep", tmp_path / "moved")
    moved = tm.Table.open(str(tmp_path / "moved")).uri
    assert catalog.refresh(moved).reason == f"the table was at {places[3]}"
    assert len(catalog.tables()) == 4


def test_a_clone_that_a_catalogue_knows_by_the_id_of_its_source_makes_room_for_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    source = made(tmp_path / "a", 2)
    source.clone(str(tmp_path / "deep"), deep=True)
    clone = tm.Table.open(str(tmp_path / "deep"))
    catalog.refresh(clone.uri)
    with catalog.database.engine.begin() as connection:
        for table in OF_A_TABLE:  # some releases stored clones in this form
            connection.execute(table.update().values(table_id=source.snapshot.table_id))
    clone.append({"n": 3})
    assert catalog.refresh(clone.uri).outcome == "refreshed"
    assert is_right(catalog, clone.uri, clone.version)
    assert catalog.refresh(source.uri).outcome == "loaded"
    assert catalog.refresh(clone.uri).outcome == "loaded"
    assert [is_right(catalog, each.uri, each.version) for each in (source, clone)] == [True, True]


def test_a_table_with_an_old_tag_is_loaded_from_what_is_retained(catalog: Catalog, tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), SCHEMA, settings={"gc.horizon": "0s", "gc.retention": "0s"})
    for number in range(3):
        table.append({"n": number})
    catalog.refresh(table.uri)
    table.tag("audit", 2)
    for number in range(4):
        table.append({"n": number})
        table.checkpoint()
    clock = ManualClock(int(time.time() * 1000) + 60_000)
    collect(table.store, TransactionLog(table.store, clock=clock), clock=clock)
    assert not (tmp_path / "t" / version_key(3)).exists()
    with pytest.raises(NotFound, match="version 3 was collected"):
        TransactionLog(table.store).snapshot(version=3)
    assert catalog.check(table.uri).shown == ["version 3 cannot be opened any more. The newest is 7"]
    for bring in (catalog.refresh, catalog.rebuild):
        assert bring(table.uri).outcome == "loaded"
        assert is_right(catalog, table.uri, table.version)
    assert table.scan(at="audit").to_arrow().num_rows == 2


def test_values_of_splits_that_left_are_nowhere_in_the_catalogue(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("who", pa.string()), ("place", pa.string())])
    table = tm.Table.create(str(tmp_path / "t"), schema, partition_by="place")
    url = f"sqlite:///{tmp_path}/catalog.db"
    rows = [{"n": 1, "who": "zqj-person", "place": "zqj-place"}, {"n": 2, "who": "bob", "place": "zqj-place"}]
    table.append(rows)
    with tm.open_catalog(url) as catalog:
        catalog.refresh(table.uri)
        table.forget("who = 'zqj-person'")
        catalog.refresh(table.uri)
        assert catalog.sql("SELECT count(*) FROM splits WHERE removed_version IS NOT NULL AND max_values IS NOT NULL")[
            1
        ] == [(0,)]
        with catalog.database.engine.begin() as connection:  # some releases stored bounds
            gone = SPLITS.c.removed_version.is_not(None)
            connection.execute(SPLITS.update().where(gone).values(max_values='{"2":"zqj-person"}'))
        table.refresh().forget("who = 'bob'")
        catalog.refresh(table.uri)
        assert is_right(catalog, table.uri, table.refresh().version)
    assert b"zqj-person" not in b"".join(each.read_bytes() for each in tmp_path.glob("catalog.db*"))


def test_a_database_of_another_table_is_refused_until_it_is_made_again(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    catalog.refresh(table.uri, name="t")
    shutil.rmtree(tmp_path / "t")
    other = made(tmp_path / "t", 5)
    for ask in (lambda: catalog.refresh(other.uri), lambda: catalog["t"]):
        with pytest.raises(
            InvalidInput,
            match=rf"has the table .*, but the table there is {other.snapshot.table_id}\. If the table was replaced",
        ):
            ask()
    assert catalog.check("t").shown[0].endswith(f" in the catalog, but {other.snapshot.table_id} in the log")
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
    with pytest.raises(InvalidInput, match="several tables of the catalog"):
        catalog.check("t")
    with pytest.raises(NotFound, match=r"is not a table of the catalog .*which has: t, t"):
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
    assert "bytes is 1 in the catalog, but" in "\n".join(found.shown)
    assert "2 splits are live in the catalog, but 3 in the log" in found.shown
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
            with pytest.raises(InvalidInput, match="Begin the statement with"):
                catalog.sql(text)
        with pytest.raises(InvalidInput, match=r"catalog.db: only statements that read are allowed. Write a SELECT"):
            catalog.sql("SELECT * FROM pragma_query_only")
        assert catalog.sql("SELECT value FROM json_each('[7]')")[1] == [(7,)]
        table.append({"n": 3})
        assert catalog.refresh(table.uri).outcome == "refreshed"
    assert not other.exists()


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 42) TO '{file}'",
        "copy (select 42) to program 'id > {file}'",
        "/* SELECT /* 1 */ */ COPY (SELECT 42) TO '{file}'",
        "-- SELECT 1\nCOPY (SELECT 42) TO '{file}'",
        "; COPY (SELECT 42) TO '{file}'",
        "COPY (SELECT 42) TO STDOUT",
        "EXPLAIN ANALYZE INSERT INTO splits SELECT * FROM splits",
        "EXPLAIN (ANALYZE) DELETE FROM splits",
        "WITH gone AS (DELETE FROM splits RETURNING 1) SELECT * FROM gone",
        "SELECT 1; COPY (SELECT 42) TO '{file}'",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT lo_export(lo_from_bytea(0, 'x'), '{file}')",
        TAKEN_BACK,
        "SELECT set_config('role', 'postgres', true)",
        "SELECT set_config('session_authorization', 'postgres', true)",
        "DO $$ BEGIN END $$",
        "SET search_path = pg_catalog",
    ],
)
def test_no_statement_reaches_files_or_programs_of_the_server_or_writes(
    postgres_catalog: Catalog, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "written"
    with pytest.raises(InvalidInput):
        postgres_catalog.sql(text.format(file=file))
    assert not file.exists()
    assert postgres_catalog.sql("SELECT 42")[1] == [(42,)]


@pytest.mark.parametrize(
    "text",
    [
        "(SELECT 1)",
        "/* COPY */ VALUES (1)",
        "-- COPY\nTABLE tables",
        "EXPLAIN (ANALYZE, VERBOSE) SELECT 1",
        "explain analyze with a as (select 1) select * from a",
        "SHOW search_path",
    ],
)
def test_statements_that_ask_are_sent_whatever_comes_before_their_word(postgres_catalog: Catalog, text: str) -> None:
    names, _ = postgres_catalog.sql(text)
    assert names


def test_what_a_statement_sets_or_locks_ends_with_it(postgres_catalog: Catalog) -> None:
    postgres_catalog.sql("SELECT set_config('search_path', 'pg_catalog', false), pg_advisory_lock(7)")
    assert postgres_catalog.sql("SHOW search_path")[1] != [("pg_catalog",)]
    assert postgres_catalog.sql("SELECT pg_try_advisory_lock(7)")[1] == [(True,)]


RIGHTS = {
    "SUPERUSER": "is a superuser",
    "CREATEROLE": "has CREATEROLE",
    "REPLICATION": "has REPLICATION",
    "IN ROLE pg_read_server_files": "the role pg_read_server_files, which reaches",
    "IN ROLE pg_write_server_files": "the role pg_write_server_files, which reaches",
    "IN ROLE pg_execute_server_program": "the role pg_execute_server_program, which reaches",
    "NOINHERIT IN ROLE pg_signal_backend": "the role pg_signal_backend, which reaches",
    "NOINHERIT IN ROLE postgres": "has the role postgres, which is a superuser",
}


@pytest.mark.parametrize("rights", RIGHTS)
def test_no_question_is_sent_by_a_role_that_can_get_more_rights_than_to_read(
    postgres: Postgres, tmp_path: Path, rights: str
) -> None:
    table, place = made(tmp_path / "t", 2), postgres.place()
    role = postgres.role(f"wide_{[*RIGHTS].index(rights)}", rights)
    schema = place.rpartition("%3D")[2]
    with tm.open_catalog(place) as catalog, psycopg.connect(place, autocommit=True) as granting:
        catalog.refresh(table.uri)
        granting.execute(f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC".encode())
        granting.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO PUBLIC".encode())
    with tm.open_catalog(postgres.asked_by(role, place)) as catalog:
        for text in (TAKEN_BACK, "SELECT 1"):
            with pytest.raises(InvalidInput, match=RIGHTS[rights]):
                catalog.sql(text)
        table.append({"n": 3})
        assert catalog.refresh(table.uri).outcome == "refreshed"
        assert is_right(catalog, table.uri, 3)
        assert catalog.changes_since(table.uri, 2).rows


@pytest.mark.parametrize("lowered", ["SET ROLE {role}", "SET SESSION AUTHORIZATION {role}"])
def test_a_session_of_a_superuser_that_has_lower_rights_for_now_sends_no_question(
    postgres: Postgres, lowered: str
) -> None:
    place = postgres.owned_place()
    role = place.partition("//")[2].partition(":")[0]
    with tm.open_catalog(place) as made_by_its_owner:
        assert made_by_its_owner.sql("SELECT 1")[1] == [(1,)]
    with tm.open_catalog(place.replace(f"//{role}:@", "//postgres:@")) as catalog:

        @sa.event.listens_for(catalog.database.engine, "connect")
        def _opened(connection: psycopg.Connection, _: object) -> None:
            connection.execute(lowered.format(role=role).encode())
            connection.commit()

        catalog.database.engine.dispose()
        with pytest.raises(InvalidInput, match="has the role postgres, which is a superuser"):
            catalog.sql("SELECT 1")


def test_a_question_keeps_the_role_that_its_session_has(postgres: Postgres) -> None:
    place = postgres.owned_place()
    owner = place.partition("//")[2].partition(":")[0]
    member = postgres.role("member_of_an_owner", f"NOINHERIT IN ROLE {owner}")
    with tm.open_catalog(
        f"{postgres.asked_by(member, place.replace(owner, 'postgres'))}%20-crole%3D{owner}"
    ) as catalog:
        assert catalog.sql("SELECT session_user, current_user, count(*) FROM tables")[1] == [(member, owner, 0)]


def test_the_refusal_says_how_to_make_a_role_that_can_ask(postgres: Postgres, tmp_path: Path) -> None:
    table, place = made(tmp_path / "t", 2), postgres.place()
    with tm.open_catalog(place) as catalog:
        catalog.refresh(table.uri)
        with pytest.raises(InvalidInput, match="Connect as a role that can only read") as refused:
            catalog.sql("SELECT 1")
    advice = str(refused.value).partition("Create such a role with: ")[2]
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(advice.encode())
    with tm.open_catalog(postgres.asked_by("catalog_reader", place), must_exist=True) as catalog:
        assert catalog.sql("SELECT live_rows FROM tables")[1] == [(2,)]
        with pytest.raises(InvalidInput, match="this role has no right to use the function 'pg_read_file'"):
            catalog.sql("SELECT pg_read_file('PG_VERSION')")


@pytest.mark.parametrize("text", ["select \0 1", "select 1 \0; delete from splits", "select '\udcff'"])
def test_a_statement_that_the_database_would_not_get_as_it_is_is_refused(catalog: Catalog, text: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"the statement contains a (null character|character that UTF-8 cannot encode)"
    ):
        catalog.sql(text)


def test_an_answer_that_is_no_text_or_time_of_python_says_what_to_ask_instead(
    postgres_catalog: Catalog, tmp_path: Path
) -> None:
    with tm.open_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        with pytest.raises(InvalidInput, match=r"contains text that is not UTF-8\. Select its bytes with CAST"):
            catalog.sql("SELECT CAST(x'ff' AS text)")
        assert catalog.sql("SELECT CAST(CAST(x'ff' AS text) AS BLOB)")[1] == [(b"\xff",)]
        with pytest.raises(
            InvalidInput, match=r"a value is out of the range of its type or of Python\. Cast the value"
        ):
            catalog.sql("SELECT zeroblob(2000000000)")
    with pytest.raises(InvalidInput, match=r"a value is out of the range of its type or of Python\. Cast the value"):
        postgres_catalog.sql("SELECT 'infinity'::date")


def test_text_of_a_catalogue_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    with tm.open_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        catalog.refresh(table.uri)
        damage = "UPDATE tables SET name = CAST(x'ff' AS text)"
        catalog.database.write(partial(sa.Connection.exec_driver_sql, statement=damage))
        with pytest.raises(tm.errors.Corrupt, match="delete the file, or name another, and refresh it"):
            catalog.tables()


@pytest.fixture
def postgres_catalog(postgres: Postgres) -> Iterator[Catalog]:
    with tm.open_catalog(postgres.owned_place()) as catalog:
        yield catalog


def test_a_page_has_rows_and_says_of_which_version(catalog: Catalog, tmp_path: Path) -> None:
    table = made(tmp_path / "t", 2)
    catalog.refresh(table.uri)
    assert catalog.changes_since(table.uri, 2, limit=1).version == 2
    with pytest.raises(NotFound, match=r"the catalog has versions only up to 2, not 99. Refresh"):
        catalog.changes_since(table.uri, 99)
    for unknown in ("nope = 1", tm.col("nope") == 1, "n = 1 and lower(nope) = 'x'"):
        with pytest.raises(InvalidInput, match=r"unknown column 'nope'. The table has n"):
            catalog.splits_between(table.uri, filter=unknown)
    with pytest.raises(InvalidInput, match="at least 1 row, found limit=0"):
        catalog.compaction_candidates(table.uri, limit=0)


def test_a_foreign_database_is_refused_and_left_as_it_is(database_url: str) -> None:
    engine = sa.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE commits (sha text)")
    with pytest.raises(
        InvalidInput,
        match=r"neither empty nor a catalog of Tidemark: .*contains the tables 'commits'. Give the catalog",
    ):
        tm.open_catalog(database_url)
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == ["commits"]
        connection.exec_driver_sql("DROP TABLE commits")
        connection.exec_driver_sql("CREATE TABLE tidemark_catalog (format text, version int)")
        connection.exec_driver_sql("INSERT INTO tidemark_catalog VALUES ('another', 1)")
    with pytest.raises(InvalidInput, match=r"the table tidemark_catalog contains \[\('another', 1\)\]"):
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
    with pytest.raises(Unsupported, match=r"the catalog has version 3, but this release supports up to 1. Upgrade"):
        tm.open_catalog(database_url)


@pytest.mark.parametrize(
    ("url", "kind", "says"),
    [
        ("nonsense", InvalidInput, "is not the URL of a database"),
        ("mysql://root:secret@localhost/x", InvalidInput, "a catalog is stored in SQLite or PostgreSQL"),
        ("sqlite://", InvalidInput, "Name a file"),
        ("sqlite:////nowhere/at/all/catalog.db", NotFound, "does not exist"),
        (
            "postgresql://nobody:secret@127.0.0.1:1/x",
            Unavailable,
            "x: the database does not answer. Check that the database runs, .*Try again when the database can be",
        ),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_without_its_password(
    url: str, kind: type[TidemarkError], says: str
) -> None:
    with pytest.raises(kind, match=says) as refused:
        tm.open_catalog(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("SELECT nope FROM splits", "unknown column 'nope'"),
        ("SELECT 1 FROM nope", "unknown table 'nope'. Use a table of the catalog"),
        ("SELECT nope(1)", "function 'nope'"),
        ("SELECT 1 FRM splits s", "the statement is not valid SQL near"),
        ("SELECT (1", "the statement is not valid SQL: its end is missing. Correct it"),
    ],
)
def test_a_fault_of_a_statement_is_stated_in_our_words(catalog: Catalog, statement: str, fault: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        catalog.sql(statement)
    assert fault in str(refused.value)
    assert not re.search(r"LINE \d|no such|does not exist|HINT|syntax error", str(refused.value))


def test_a_folder_is_no_catalogue(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=f"this is a folder. Name a file in the folder, such as sqlite:///{tmp_path}/catalog.db"
    ):
        tm.open_catalog(f"sqlite:///{tmp_path}")


def test_a_catalogue_that_has_to_be_there_is_not_made(database_url: str, tmp_path: Path) -> None:
    for place in (database_url, f"sqlite:///{tmp_path}/none.db"):
        with pytest.raises(
            NotFound, match=r"the catalog does not exist. Create the catalog with: tidemark catalog refresh"
        ):
            tm.open_catalog(place, must_exist=True)
    assert not (tmp_path / "none.db").exists()


def test_a_damaged_file_and_a_busy_one_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(
        tm.errors.Corrupt,
        match=r"damaged\.db: the file is not a database\. Name another file\. If the catalog was here",
    ):
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
