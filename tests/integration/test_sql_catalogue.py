"""The SQL catalog is compared with its log, in SQLite and in PostgreSQL, after failures of the database or the log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread

import pyarrow as pa
import pytest
import sqlalchemy as sa

import tidemark as tm
from storage_core.base.errors import SnapshotExpired
from storage_core.catalog.answers import FoundSplit, Page, Place, Refreshed
from storage_core.catalog.catalog import Catalog
from storage_core.catalog.refresher import apply
from storage_core.compact import planner as expiry
from storage_core.data.formats.keys import version_key
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import open_table_store as open_store
from storage_core.log.versions import read_version
from storage_core.maintain.collect import advance_boundary
from storage_core.maintain.table_objects import list_table
from storage_core.read.pruning import prune
from tests.support import upkeep
from tests.support.catalogued import ByHand, Killer, OfACatalogue, OfTheLog, Side, paged
from tests.support.fault_store import Crash
from tests.support.log_tables import metadata, split
from tests.support.log_work import PLANNERS
from tests.support.many_splits import table_of_many
from tests.support.postgres import Postgres
from tests.support.scale import scaled

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),
        ("service", pa.string()),
        ("n", pa.int64()),
        ("value", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("ok", pa.bool_()),
    ]
)
DATABASES = ("sqlite", "postgresql")
ODD = "a \"',"
MOST_STATEMENTS = 45
FAR_MS = 4_102_444_800_000
"""A time after the end of every retention in the tests."""


def appended(table: tm.Table, hour: int, *numbers: int) -> None:
    rows = [
        {
            "at": dt.datetime(2026, 1, 1, hour, number % 60, tzinfo=dt.UTC),
            "service": f'a"\\\n{number}',
            "n": number,
            "value": number / 2 if number else float("nan"),
            "price": number,
            "ok": number % 2 == 0,
        }
        for number in numbers
    ]
    known = set(table.schema.names)
    table.append([{name: value for name, value in row.items() if name in known} for row in rows])


def events(uri: str) -> tm.Table:
    return tm.Table.create(
        uri,
        SCHEMA,
        time_column="at",
        window="1h",
        sort_schema="orders=service|at/V2",
        retention="3650d",
        indexes=[{"name": "services", "kind": "bitmap", "columns": ["service"]}],
        partition_by=["ok"],
        settings={"checkpoint.interval": 4},
    )


def course(table: tm.Table) -> Iterator[str]:
    """Change an append table step by step."""
    for hour in range(3):
        appended(table, hour, hour, hour + 1, hour + 10)
        yield "append"
    appended(table, 1, 5, 6)
    yield "append to a window that has rows"
    upkeep.catch_up(table.refresh())
    yield "index"
    table.refresh().delete("n = 1")
    yield "delete some rows of a split"
    table.delete("n >= 10")
    yield "delete all rows of a split"
    upkeep.compact(table)
    yield "compact"
    table.refresh().add_column("more", "long", default=3)
    yield "add a column"
    table.rename_column("n", "number")
    appended(table, 2, 7)
    yield "rename a column, and append"
    table.drop_column("price")
    appended(table, 2, 8)
    yield "drop a column, and append"
    table.restore(6)
    yield "restore"
    upkeep.catch_up(table.refresh())
    yield "index what came back"
    head = table.refresh().snapshot
    gone = expiry.plan_expiry(
        head, retention_ms=1, now_ms=1000 * int(dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC).timestamp()) + 1
    )
    table.log.commit(head, gone.removes(0), operation="EXPIRE")
    yield "collect, and expire a window"


def keyed_course(table: tm.Table) -> Iterator[str]:
    """Change a keyed table step by step."""
    for number in range(3):
        table.upsert([{"id": each, "text": f"{number}"} for each in range(number, number + 4)], on="id")
        table.append([{"id": 50 + number, "text": "appended"}])
        upkeep.merge(table.refresh())
        yield "merge"
    upkeep.compact(table.refresh())
    yield "compact"


def table_of(kind: str, uri: str) -> tuple[tm.Table, Callable[[tm.Table], Iterator[str]]]:
    if kind == "append":
        return events(uri), course
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    return tm.Table.create(uri, schema, primary_key="id"), keyed_course


@pytest.mark.parametrize("side", ["log", *DATABASES])
@pytest.mark.parametrize("kind", ["append", "keyed"])
def test_every_side_answers_the_same_after_every_step(
    side: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    table, steps = table_of(kind, str(tmp_path / kind))
    place = f"sqlite:///{tmp_path}/catalog.db"
    if side == "postgresql":
        place = request.getfixturevalue("postgres").owned_place()
    by_hand = ByHand(table.log)
    with tm.open_catalog(place) as catalog:
        catalog.refresh(table.uri)
        asked: Side = OfTheLog(table.log) if side == "log" else OfACatalogue(catalog, table.uri, table.log)
        for step in steps(table):
            by_hand.caught_up()
            if side != "log":
                assert catalog.refresh(table.uri).outcome == "refreshed", step
                assert catalog.refresh(table.uri).outcome == "current", step
                checked = catalog.check(table.uri)
                assert (checked.shown, checked.version) == ([], by_hand.version), step
            for name in ("live", "segments", "regions", "candidates", "between"):
                assert getattr(asked, name)() == getattr(by_hand, name)(), f"{name} after: {step}"
            assert asked.expired(FAR_MS) == by_hand.expired(FAR_MS), step
            for since in range(0, by_hand.version, 5):
                assert asked.changes(since) == by_hand.changes(since), step
            there = list_table(table.store).objects
            assert {*asked.live(), *asked.segments()} <= there.keys(), step


def test_a_table_whose_versions_were_collected_meanwhile_is_loaded_again(catalog: Catalog, tmp_path: Path) -> None:
    table = events(str(tmp_path / "t"))
    catalog.refresh(table.uri)
    for _ in course(table):
        pass
    head = table.refresh().checkpoint().version
    advance_boundary(table.store, head, nonce="collected")
    table.store.delete([version_key(version) for version in range(head)])
    again = catalog.refresh(table.uri)
    assert (again.outcome, again.reason) == ("loaded", "the file of version 0 is not there any more")
    assert catalog.check(table.uri).shown == []
    assert catalog.refresh(table.uri).outcome == "current"
    with pytest.raises(SnapshotExpired, match="has no changes before version"):
        catalog.changes_since(table.uri, 0)


@pytest.mark.parametrize("seed", range(scaled(4)))
def test_any_history_is_the_same_version_by_version_at_once_and_made_again(
    catalog: Catalog, seed: int, tmp_path: Path
) -> None:
    random, uri = Random(seed), str(tmp_path / "t")
    log = TransactionLog(open_store(uri))
    log.create(metadata())
    catalog.refresh(uri)
    by_hand = ByHand(log).caught_up()
    for number in range(30):
        planners, weights = zip(*PLANNERS, strict=True)
        (planner,) = random.choices(planners, weights)
        work = planner(random, f"{seed}-{number}", log.snapshot())
        if work is not None:
            with suppress(tm.errors.Fenced):
                log.commit(work.planned, work.actions, operation=work.kind, requirements=work.requirements)
        if random.random() < 0.5:
            catalog.refresh(uri)
    catalog.refresh(uri)
    asked = OfACatalogue(catalog, log.store.uri, log)
    by_hand.caught_up()

    def require_same() -> None:
        assert catalog.check(uri_of(catalog)).shown == []
        for name in ("live", "segments", "regions"):
            assert getattr(asked, name)() == getattr(by_hand, name)(), name
        assert asked.changes(0) == by_hand.changes(0)

    require_same()
    commits = catalog.sql("SELECT version, commit_id, splits_added, splits_removed, operation FROM commits ORDER BY 1")
    assert [row[0] for row in commits[1]] == [*range(by_hand.version + 1)]
    rebuilt = catalog.rebuild(uri)
    assert (rebuilt.outcome, rebuilt.version) == ("loaded", by_hand.version)
    require_same()
    assert catalog.sql(
        "SELECT version, commit_id, splits_added, splits_removed, operation FROM commits ORDER BY 1"
    ) == (commits)


def uri_of(catalog: Catalog) -> str:
    (known,) = catalog.tables()
    return known.uri


@pytest.mark.parametrize("copied_rows", [1, 1_000])
def test_whatever_values_hold_the_catalogue_says_what_the_log_says(
    catalog: Catalog, copied_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.catalog.refresher.COPIED_ROWS", copied_rows)
    schema = pa.schema([(ODD, pa.string()), ("plain", pa.string()), ("f", pa.float64()), ("b", pa.bool_())])
    table = tm.Table.create(str(tmp_path / "t"), schema, partition_by=["plain"])
    texts = [
        "",
        "\x00",
        "\x1b[1m",
        'quo"te',
        "back\\slash",
        "new\nline",
        "tab\t",
        ",",
        "%s",
        "\U0010ffff",
        "é",
        "null",
        None,
    ]
    numbers = [float("nan"), float("inf"), -float("inf"), -0.0, 1e300, 5e-324, 0.1, None]
    for number, text in enumerate(texts):
        row = {ODD: text, "plain": text, "f": numbers[number % len(numbers)], "b": number % 2 == 0}
        table.append(row)
    catalog.refresh(table.uri)
    assert catalog.check(table.uri).shown == []
    catalog.rebuild(table.uri)
    assert catalog.check(table.uri).shown == []
    for text in texts:
        wanted = tm.col("plain").is_null() if text is None else tm.col("plain") == text
        found = {each.split_id for each in paged(partial(splits_of, catalog, table.uri, wanted))}
        assert found == {add.path for add in prune(table.snapshot, wanted.predicate)}, text


def splits_of(catalog: Catalog, uri: str, by: tm.Filter, at: Place | None) -> Page[FoundSplit, Place]:
    return catalog.splits_between(uri, filter=by, after=at, limit=5)


def begun(uri: str) -> tm.Table:
    table = events(uri)
    appended(table, 0, 0, 1, 2, 3)
    return table


def finished(table: tm.Table) -> TransactionLog:
    """Commit every kind of change that a catalog supports, in few versions."""
    upkeep.catch_up(table.refresh())
    table.refresh().delete("n = 0 or ok = false")
    table.rename_column("n", "number")
    return table.log


@pytest.mark.parametrize("work", ["refresh", "rebuild"])
@pytest.mark.parametrize("database", DATABASES)
def test_killed_at_any_statement_it_is_at_a_whole_version_and_goes_on(
    database: str, work: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def place(number: int) -> str:
        if database == "sqlite":
            return f"sqlite:///{tmp_path}/{number}.db"
        server: Postgres = request.getfixturevalue("postgres")
        return server.place()

    table = begun(str(tmp_path / "t"))
    # A rebuild is one transaction. Short runs test every third statement of a rebuild.
    step = 3 if work == "rebuild" and scaled(1) == 1 else 1
    behind = {number: tm.open_catalog(place(number)) for number in range(0, MOST_STATEMENTS, step)}
    for each in behind.values():
        each.refresh(table.uri)
    head = finished(table).snapshot().version
    counter = Killer()
    counter(behind[0].database.engine)
    getattr(behind[0], work)(table.uri)
    assert 15 < counter.statements < MOST_STATEMENTS
    for number in (each for each in behind if 0 < each <= counter.statements):
        killer, killed = Killer(at=number), behind[number]
        killer(killed.database.engine)
        with pytest.raises(Crash):
            getattr(killed, work)(table.uri)
        checked = killed.check(table.uri)
        assert (checked.shown, 1 <= checked.version <= head) == ([], True), number
        killed.refresh(table.uri)
        checked = killed.check(table.uri)
        assert (checked.shown, checked.version) == ([], head), number
    for each in behind.values():
        each.close()


def test_the_first_rows_go_in_before_their_indexes_and_leave_all_of_them_wherever_that_is_killed(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.catalog.refresher.ANEW_ROWS", 1)
    first, second = (begun(str(tmp_path / name)) for name in ("first", "second"))

    def index_names(catalog: Catalog) -> set[str]:
        with catalog.database.read() as connection:
            return {str(each["name"]) for each in sa.inspect(connection).get_indexes("splits")}

    def note(*found: object) -> None:
        dropped.extend(each for each in found if str(each).strip().startswith("DROP INDEX"))

    dropped: list[object] = []
    with tm.open_catalog(database_url) as catalog:
        every = index_names(catalog)
    for number in range(1, MOST_STATEMENTS, 3):
        with tm.open_catalog(database_url) as catalog:
            sa.event.listen(catalog.database.engine, "before_cursor_execute", note)
            Killer(at=number)(catalog.database.engine)
            with suppress(Crash):
                catalog.refresh(first.uri)
        with tm.open_catalog(database_url) as catalog:
            assert index_names(catalog) == every
    with tm.open_catalog(database_url) as catalog:
        catalog.refresh(second.uri)
        assert index_names(catalog) == every
        assert [catalog.check(each.uri).shown for each in (first, second)] == [[], []]
    assert len(dropped) >= len(every)


def test_two_refreshers_at_once_apply_each_version_once(database_url: str, tmp_path: Path) -> None:
    log = finished(begun(str(tmp_path / "t")))
    uri = log.store.uri
    with tm.open_catalog(database_url) as one, tm.open_catalog(database_url) as other:
        done: list[Refreshed] = []

        def work(catalog: Catalog) -> None:
            done.extend(catalog.refresh(uri) for _ in range(10))

        threads = [Thread(target=work, args=(each,)) for each in (one, other)]
        for each in threads:
            each.start()
        for number in range(20):
            log.commit(log.snapshot(), [split(str(number))], operation="APPEND")
        for each in threads:
            each.join()
        one.refresh(uri)
        assert len(done) == 20
        assert one.check(uri).shown == []
        (counted,) = one.sql("SELECT count(*), count(DISTINCT version), min(version), max(version) FROM commits")[1]
        assert counted[0] == counted[1] == int(str(counted[3])) - int(str(counted[2])) + 1


def test_a_version_that_another_refresher_applied_is_not_applied_again(database_url: str, tmp_path: Path) -> None:
    log = finished(begun(str(tmp_path / "t")))
    with tm.open_catalog(database_url) as one, tm.open_catalog(database_url) as other:
        one.refresh(log.store.uri)
        (before,) = one.tables()
        log.commit(log.snapshot(), [split("late")], operation="APPEND")
        actions = read_version(log.store, before.head_version + 1)
        assert actions is not None
        assert other.refresh(log.store.uri).versions == 1
        late = one.database.write(lambda connection: apply(connection, before, before.head_version + 1, actions))
        assert late is None
        assert one.refresh(log.store.uri).outcome == "current"
        assert one.check(log.store.uri).shown == []


@pytest.mark.parametrize("database", DATABASES)
def test_each_question_is_answered_by_its_index_alone(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db" if database == "sqlite" else request.getfixturevalue("postgres").place()
    uri = table_of_many(tmp_path / "many", splits=20_000, windows=500).store.uri
    with tm.open_catalog(url) as catalog:
        catalog.refresh(uri)
        assert catalog.check(uri).shown == []
        since = dt.datetime(1970, 1, 5, tzinfo=dt.UTC)
        questions: dict[str, Callable[[], object]] = {
            "splits_live_by_scope": lambda: catalog.compaction_candidates(uri, limit=100),
            "splits_live_by_time": lambda: catalog.splits_between(uri, since, since + dt.timedelta(hours=2), limit=40),
            "splits_live_by_expiry": lambda: catalog.expired_windows(uri, now_ms=36_000_000, limit=5),
            "splits_by_addition": lambda: catalog.changes_since(uri, 1, limit=100),
        }
        for index, ask in questions.items():
            with catalog.explaining() as plans:
                ask()
            assert plans
            for plan in plans:
                assert index in plan
                assert "Seq Scan" not in plan
                assert "SCAN splits" not in plan
                assert "SCAN other" not in plan
