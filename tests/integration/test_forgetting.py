"""Erasure on request removes the rows from the table at once. The rows leave every store as the collector proceeds.

At every stage the test reads each object of every store and decodes it in its own format. The test then compares the
content with the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import LateData, TableConfig
from storage_core.maintain.forget import MOST_STATES, unknown_writers
from storage_core.maintain.forget_report import KeptBy
from storage_core.write.late_rows import read_entries
from storage_core.write.region.spec import first_specs
from tests.support.changed_rows import require_sound
from tests.support.forgetting import (
    APPENDED,
    CANARY,
    HORIZON_MS,
    KEYED,
    RETENTION_MS,
    SCHEMA,
    WHERE,
    Forgetful,
    require_true,
    row,
)
from tests.support.waves import WavesStore


def _appended() -> Forgetful:
    """Make a table with a person's rows in all of its parts and in a raw log on three stores."""
    made = Forgetful.create(APPENDED)
    table = made.opened()
    table.append(made.rows(range(10)) + made.rows([100, 101], CANARY))
    made.index()
    table.append(made.rows(range(20, 24)) + made.rows([120], CANARY))
    made.keyed.compact()
    made.index()
    made.opened().append(made.rows(range(30, 33)))
    made.produce(range(200, 203))
    made.produce([300], CANARY)
    made.produce(range(310, 312))
    made.distribute()
    made.index()
    made.reject(f"7,{CANARY}", "8,somebody else")
    made.reject("9,only others", source="other.csv")
    return made


def _keyed() -> Forgetful:
    """Make a keyed table with data of the person in the base, generations, a region's log and superseded rows."""
    made = Forgetful.create(KEYED)
    table = made.opened()
    table.append(made.rows(range(10)) + made.rows([100, 101, 102], CANARY))
    made.keyed.merge_all()
    made.index()
    table = made.opened()
    table.append(made.rows(range(20, 24)) + made.rows([120, 121], CANARY))
    made.produce(range(200, 203))
    made.produce([300], CANARY)
    made.distribute()
    with made.opened().writer() as writer:
        writer.put(made.rows([30, 31]) + made.rows([130], CANARY))
        writer.patch({"id": 100, "note": f"of {CANARY}"})
        writer.put(made.rows([121]))  # the key belongs to somebody else by now
    made.reject(f'{{"id": 7, "person": "{CANARY}"}}')
    return made


def _sorted_in_regions() -> Forgetful:
    """Make a keyed table of three regions with sorted generations, some of which are merged."""
    regions = first_specs([{"source": "id", "transform": "bucket", "n": 3}], SCHEMA)
    made = Forgetful.create(replace(KEYED, region_specs=regions), raw_stores=0)
    made.opened().append(made.rows(range(10)) + made.rows([100, 101, 102], CANARY))
    made.keyed.sort()
    made.keyed.merge_all()
    made.opened().append(made.rows(range(20, 25)) + made.rows([110, 111], CANARY))
    made.opened().append(made.rows([25, 26]) + made.rows([112], CANARY))
    made.keyed.sort()
    made.index()
    return made


def _in_json_checkpoints() -> Forgetful:
    """Make a table with a multipart JSON checkpoint at every version. One row to forget is already deleted."""
    made = Forgetful.create(replace(APPENDED, checkpoint_format="json-multipart", checkpoint_interval=1), raw_stores=0)
    made.opened().append(made.rows(range(10)) + made.rows([100, 101], CANARY))
    made.opened().append(made.rows(range(20, 25)) + made.rows([110], CANARY))
    made.opened().delete("id = 110")
    made.keyed.compact()
    made.index()
    return made


def _in_renamed_columns() -> Forgetful:
    """Make a table whose column `person` was renamed to `who`. A new column now has the name `person`."""
    made = Forgetful.create(replace(APPENDED, sort_schema=None, indexes=()), raw_stores=0)
    made.opened().append(made.rows(range(10)) + made.rows([100, 101], CANARY))
    made.opened().rename_column("person", "who")
    made.opened().add_column("person", "string")
    came = made.rows(range(20, 24)) + made.rows([110], CANARY)
    made.opened().append([{**each, "who": each["person"], "person": "x"} for each in came])
    return made


def _retained(made: Forgetful, where: str = WHERE) -> None:
    """Advance the clock past retention and horizon and collect, repeatedly, until a collection removes nothing."""
    for _ in range(6):
        made.clock.now += RETENTION_MS + HORIZON_MS
        made.collect()
        made.report(where)


@pytest.mark.parametrize("make", [_appended, _keyed])
def test_no_byte_of_a_person_is_left_and_the_report_is_true_at_every_stage(make: Callable[[], Forgetful]) -> None:
    made = make()
    before = made.places()
    kinds = {key.split("/")[0] for _, key in before}
    assert {"splits", "_indices", "_transaction_log", "quarantine", "live"} <= kinds
    done = made.opened().forget(WHERE, raw_logs=[made.raw])
    assert done.rows > 0
    assert made.numbers() == sorted(made.others)
    require_true(done.report, made.places())
    assert not [each for each in done.report.held if each.by is KeptBy.TABLE]
    assert not [each for each in done.report.held if each.until_ms is None]
    made.index()
    made.report()
    made.clock.now += HORIZON_MS
    made.collect()
    made.report()
    _retained(made)
    assert made.places() == set()
    assert made.report().is_clean
    assert made.numbers() == sorted(made.others)
    require_sound(made.table_store)


@pytest.mark.parametrize("make", [_sorted_in_regions, _in_json_checkpoints, _in_renamed_columns])
def test_it_is_so_however_the_table_is_kept(make: Callable[[], Forgetful]) -> None:
    made = make()
    where = WHERE.replace("person", "who") if make is _in_renamed_columns else WHERE
    done = made.opened().forget(where)
    require_true(done.report, made.places())
    assert not [each for each in done.report.held if each.until_ms is None]
    _retained(made, where)
    assert made.places() == set()
    assert made.report(where).is_clean
    assert made.numbers() == sorted(made.others)


def test_it_is_done_when_the_report_said_that_it_can_be() -> None:
    made = _appended()
    held = made.opened().forget(WHERE, raw_logs=[made.raw]).report.held
    last_ms = max(each.until_ms or 0 for each in held if each.kind != "raw_chunk")  # raw chunks have a shorter horizon
    reports = []
    while made.clock.now < last_ms + HORIZON_MS:
        made.clock.now += HORIZON_MS
        made.collect()
        reports.append((made.clock.now, made.opened().forget_report(WHERE, raw_logs=[made.raw]).is_clean))
    assert reports[-1][1]
    assert not [at_ms for at_ms, is_clean in reports if is_clean and at_ms < last_ms]


@pytest.mark.parametrize("field", ["person", "bucket[2](id)"])
def test_of_a_partitioned_table_what_names_the_folder_of_a_person_is_in_the_report_and_goes(field: str) -> None:
    made = Forgetful.create(replace(APPENDED, partition_by=(field,)), raw_stores=0)
    made.opened().append(made.rows(range(10)) + made.rows([100, 101], CANARY))
    made.index()
    made.opened().append(made.rows(range(20, 24)) + made.rows([120], CANARY))
    made.keyed.compact()
    made.index()
    made.report()
    require_true(made.opened().forget(WHERE).report, made.places())
    made.clock.now += HORIZON_MS
    made.collect()
    _retained(made)
    assert made.places() == set()
    assert made.report().is_clean
    assert made.numbers() == sorted(made.others)


def test_what_a_tag_protects_is_named_until_it_is_dropped() -> None:
    made = _appended()
    tag = made.opened().tag("audit")
    made.opened().forget(WHERE, raw_logs=[made.raw])
    _retained(made)
    report = made.report()
    assert not report.is_clean
    assert {(each.by, each.tag, each.version) for each in report.held} == {(KeptBy.TAG, "audit", tag.version)}
    assert "Remove the tag" in report.held[0].why
    made.opened().untag("audit")
    _retained(made)
    assert made.report().is_clean
    assert made.places() == set()


def test_a_chunk_that_is_not_distributed_yet_is_named_and_its_rows_are_forgotten_after_it() -> None:
    made = _appended()
    made.produce([400], CANARY)
    report = made.opened().forget(WHERE, raw_logs=[made.raw]).report
    waiting = [each for each in report.held if each.by is KeptBy.RAW_LOG]
    assert len(waiting) == len(made.raw_stores)
    assert all("Distribute, then forget again" in each.why for each in waiting)
    _retained(made)
    assert not made.report().is_clean
    made.distribute()
    assert 400 in made.numbers(), "as the report said"
    made.opened().forget(WHERE, raw_logs=[made.raw])
    _retained(made)
    assert made.report().is_clean
    assert made.numbers() == sorted(made.others)


def test_a_raw_log_that_nobody_named_keeps_the_report_from_being_clean() -> None:
    made = _appended()
    held = made.opened().forget(WHERE).report.held
    writers = {
        each.why.split()[-5].removesuffix(").") for each in held if each.by is KeptBy.RAW_LOG and each.kind == "raw_log"
    }
    assert writers == set(unknown_writers(made.opened().snapshot, [])) != set()


def test_forgetting_again_changes_nothing() -> None:
    made = _appended()
    made.opened().forget(WHERE, raw_logs=[made.raw])
    objects = {info.key for info in made.table_store.list("")}
    again = made.opened().forget(WHERE, raw_logs=[made.raw])
    assert (again.rows, again.splits_rewritten, again.commit_id) == (0, 0, "")
    assert {info.key for info in made.table_store.list("")} == objects


def test_others_in_a_quarantine_entry_stay_in_quarantine() -> None:
    made = _appended()
    made.opened().forget(WHERE, raw_logs=[made.raw])
    _retained(made)
    texts = [made.table_store.get(info.key).data.decode() for info in made.table_store.list("quarantine/")]
    assert sorted("somebody else" in each for each in texts) == [False, True]
    assert sorted("only others" in each for each in texts) == [False, True]


@pytest.mark.parametrize("config", [APPENDED, replace(KEYED, time_column="at")], ids=["append", "keyed"])
def test_rows_in_quarantine_are_forgotten_and_those_beside_them_stay_there(config: TableConfig) -> None:
    made = Forgetful.create(replace(config, late_data=LateData()), raw_stores=0)
    made.opened().append(made.rows([1, 2]))
    made.clock.now += 2 * RETENTION_MS
    made.opened().append([row(3), row(100, CANARY), row(4)])
    assert made.numbers() == [1, 2]
    assert {each.kind for each in made.report().held} == {"quarantine"}
    done = made.opened().forget(WHERE)
    assert (done.rows, done.splits_rewritten) == (0, 0)
    require_true(done.report, made.places())
    assert {(each.kind, each.by) for each in done.report.held} == {("quarantine", KeptBy.COLLECTOR)}
    _retained(made)
    assert made.places() == set()
    assert made.report().is_clean
    [(_, left)] = read_entries(made.table_store)
    assert isinstance(left, QuarantinedRows)
    assert sorted(left.rows.column("id").to_pylist()) == [3, 4]


@pytest.mark.parametrize("states", [2, MOST_STATES + 2])
def test_forgetting_again_does_what_the_report_asks_of_states(states: int) -> None:
    made = Forgetful.create(replace(APPENDED, retained_states=states), raw_stores=0)
    made.opened().append(made.rows(range(3)))
    made.opened().append(made.rows(range(3, 6)) + made.rows([100], CANARY))
    assert _times_until_nothing_is_asked(made) == (1 if states <= MOST_STATES else 2)
    made.opened().append(made.rows(range(10, 14)))
    made.keyed.compact()  # a later state lacks the objects of this state, so these objects cannot be checked later
    made.opened().checkpoint()
    made.clock.now += RETENTION_MS + HORIZON_MS
    for _ in range(2):
        made.collect()
        made.clock.now += HORIZON_MS
    assert any("Forget again" in each.why for each in made.report().held)
    assert _times_until_nothing_is_asked(made) <= 2
    _retained(made)
    assert made.report().is_clean
    assert made.numbers() == sorted(made.others)


def test_who_left_before_they_were_forgotten_is_looked_for_in_metadata_also_after_others_were_forgotten() -> None:
    made = Forgetful.create(replace(APPENDED, indexes=()), raw_stores=0)
    made.opened().append(made.rows(range(3)))
    made.opened().forget("id = 7")
    made.opened().append(made.rows(range(3, 6)) + made.rows([100], CANARY))
    made.opened().checkpoint()
    made.opened().delete(WHERE)
    made.keyed.compact()
    made.opened().checkpoint()
    made.clock.now += RETENTION_MS + HORIZON_MS
    for _ in range(2):
        made.collect()
        made.clock.now += HORIZON_MS
    assert {key.split("/")[0] for _, key in made.places()} == {"_transaction_log"}, "no split can be looked into"
    require_true(made.opened().forget(WHERE).report, made.places())
    _retained(made)
    assert made.places() == set()
    assert made.report().is_clean


def _times_until_nothing_is_asked(made: Forgetful) -> int:
    is_asked, times = True, 0
    while is_asked:
        times += 1
        report = made.opened().forget(WHERE).report
        require_true(report, made.places())
        is_asked = any("Forget again" in each.why for each in report.held)
        assert times < 4, report.held
    return times


def _of_many_windows(windows: int) -> Forgetful:
    """Make a table whose rows were each in a separate split. An overwrite has removed all these rows."""
    made = Forgetful.create(replace(APPENDED, indexes=()), raw_stores=0)
    hours = range(3600, 3600 * (windows + 1), 3600)
    made.opened().append(made.rows(hours) + made.rows([1], CANARY))
    made.opened().overwrite(made.rows([2]), "true")
    made.others = {2}
    return made


def test_a_report_reads_many_objects_at_a_time() -> None:
    few, many = 16, 96
    waves = {}
    for windows in (few, many):
        made = _of_many_windows(windows)
        store = WavesStore(made.table_store)
        table = made.opened(store)
        with store.waves.followed() as seen:
            report = table.forget_report(WHERE)
        require_true(report, made.places())
        waves[windows] = seen.number
    assert waves[many] - waves[few] <= (many - few) // 8


def test_a_forget_reads_what_only_it_reads_once() -> None:
    made = _of_many_windows(20)
    dead = {each.key for each in made.table_store.list("splits/")} - {*made.opened().snapshot.splits}
    store = WavesStore(made.table_store)
    table = made.opened(store)
    with store.waves.followed() as seen:
        table.forget(WHERE)
    got = Counter(key for _, kind, key in seen.requests if kind == "get")
    assert {got[key] for key in dead} == {1}
    assert len(dead) == 21


def test_of_a_keyed_table_only_records_without_a_row_are_looked_at_again_when_keys_are_known() -> None:
    made = Forgetful.create(replace(KEYED, indexes=()), raw_stores=0)
    with made.opened().writer() as writer:
        writer.patch({"id": 100, "note": "a patch"})  # no earlier row has this key
        for number in range(10):
            writer.put(made.rows([number]))
        writer.put([row(100, CANARY)])
    store = WavesStore(made.table_store)
    table = made.opened(store)
    with store.waves.followed() as seen:
        report = table.forget_report(WHERE)
    found = Counter(key for _, kind, key in seen.requests if kind == "get")
    entries = sorted(each.key for each in map(parse, found) if each is not None and each.kind is KeyKind.WAL_ENTRY)
    named = {each.key for each in report.held}
    assert sorted(found[key] for key in entries) == [*[1] * (len(entries) - 1), 2]
    assert len(named.intersection(entries)) == 2, "the patch and the row"


def test_a_condition_is_needed() -> None:
    made = Forgetful.create(APPENDED, raw_stores=0)
    with pytest.raises(InvalidInput, match="forget needs a condition"):
        made.opened().forget(None)  # type: ignore[arg-type]


def test_what_delta_shows_of_a_person_is_in_the_report_and_goes_once_the_newest_is_published() -> None:
    made = Forgetful.create(APPENDED, raw_stores=0)
    made.opened().append(made.rows(range(10)) + made.rows([100, 101], CANARY))
    made.opened().publish()
    made.opened().append(made.rows(range(20, 24)) + made.rows([120], CANARY))
    made.opened().publish()
    assert any("_delta_log/" in key for _, key in made.places())
    require_true(made.opened().forget(WHERE).report, made.places())
    _retained(made)
    report = made.report()
    assert {each.why for each in report.held if each.kind in ("split", "delta_commit")} == {
        "a mirror uses the object. Publish the newest version, and wait for the retention of versions"
    }
    made.opened().publish()
    made.report()
    _retained(made)
    assert made.places() == set()


def test_what_iceberg_shows_of_a_person_is_in_the_report_and_goes_once_the_newest_is_published() -> None:
    made = Forgetful.create(APPENDED, raw_stores=0)
    for number, others in enumerate((range(10), range(20, 24))):
        made.opened().append(made.rows(others) + made.rows([100 + number], CANARY))
        made.opened().publish("iceberg")
    assert made.opened().forget(WHERE).report is not None
    _retained(made)
    report = made.report()
    assert {each.why for each in report.held if each.kind in ("split", "iceberg_manifest")} == {
        "a mirror uses the object. Publish the newest version, and wait for the retention of versions"
    }
    made.opened().publish("iceberg")
    made.report()
    _retained(made)
    assert made.places() == set()
    assert made.report().is_clean
    assert made.report().is_clean
    assert made.numbers() == sorted(made.others)
