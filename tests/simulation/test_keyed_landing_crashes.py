"""Kill an ingest into a keyed table at each request. After the next run, each record is applied once.

Between the two runs, a writer puts rows. If the second run applied a record again, the record would overwrite a row of
the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, Fenced
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.store.contract import ObjectStore
from storage_core.write.region import generation
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.repartition import change_regions
from storage_core.write.region.spec import declared_fields, known_regions, read_registry, route
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore
from tests.support.keyed_landing import KEYED, SCHEMA, THREE_REGIONS, KeyedLanding, make_landing

KEYS = range(9)
SPECS = pytest.mark.parametrize("order", [None, "lsn"], ids=["in order of files", "ordered"])


def given(root: Path, order: str | None) -> KeyedLanding:
    """Return a table with three regions and landed rows. The next files to land contain puts, a delete and a patch."""
    landing = make_landing(root, replace(KEYED, region_specs=THREE_REGIONS), op="_op", order_by=order)
    landing.land("0", *({"id": key, "name": "old", "lsn": 0} for key in KEYS))
    landing.ingest()
    landing.table.merge_all()
    landing.land("1", *({"id": key, "name": f"first {key}", "lsn": 1} for key in KEYS), {"id": 1, "lsn": 1, "_op": "?"})
    landing.land("2", *({"id": key, "name": f"second {key}", "lsn": 2} for key in KEYS if key % 2))
    landing.land("3", {"id": 4, "lsn": 3, "_op": "d"}, {"id": 5, "price": 5, "lsn": 3, "_op": "patch"})
    return landing


EXPECTED = {key: f"second {key}" if key % 2 else f"first {key}" for key in KEYS if key != 4}
RECORDS = 2 * len(KEYS) + sum(key % 2 for key in KEYS) + 2


def records(landing: KeyedLanding, regions: Iterable[str]) -> int:
    """Return the number of records in all generations."""
    manifests = [read_latest(landing.store, region) for region in regions]
    return sum(
        generation.read(landing.store, each.region_id, flushed).records
        for each in manifests
        if each is not None
        for flushed in each.flushed_generations
    )


def judge(landing: KeyedLanding) -> None:
    """Require that the next run completes the files, and that each record is in one generation."""
    landing.ingest()
    assert landing.names() == EXPECTED
    assert landing.rows()[5]["price"] == 5.0
    assert records(landing, read_registry(landing.store).regions) == RECORDS
    assert [line for _, line, _ in landing.reasons()] == [10]
    assert landing.ingest().status == "nothing_to_do"


@SPECS
def test_a_run_may_end_at_any_request(tmp_path: Path, order: str | None) -> None:
    start = given(tmp_path, order)
    left = left_by_crashes(start.store, lambda store: start.at(store).ingest())
    regions = {each.id for each in known_regions(start.store, start.log.snapshot())}
    seen = set()
    for number, store in enumerate(left):
        landing = start.at(store, seed=1000 + number)
        seen.add(sum("landed:1" in found.distributed for each in regions if (found := read_latest(store, each))))
        judge(landing)
    assert seen == {0, 1, 2, 3}, "runs ended before, between and behind the regions"


def having(landing: KeyedLanding) -> set[int]:
    """Return the keys whose region has recorded that the killed run applied its landed files."""
    snapshot = landing.log.snapshot()
    rows = pa.table({"id": pa.array(KEYS, pa.int64())})
    routed = route(snapshot.table_id, snapshot.config.region_specs[-1], rows)
    found = [read_latest(landing.store, each.id) for each in routed.regions]
    has = [each is not None and "landed:1" in each.distributed for each in found]
    return {key for key, region in zip(KEYS, routed.positions.tolist(), strict=True) if has[region]}


def test_a_region_with_the_files_keeps_its_newer_rows(tmp_path: Path) -> None:
    start = given(tmp_path, None)
    seen = set()
    for number, store in enumerate(left_by_crashes(start.store, lambda store: start.at(store).ingest())):
        landing = start.at(store, seed=1000 + number)
        keys = having(landing)
        seen.add(len(keys))
        with landing.table.routing_writer() as writer:
            writer.put([{"id": key, "name": "written"} for key in KEYS])
        landing.ingest()
        others = {key: name for key, name in EXPECTED.items() if key not in keys}
        assert landing.names() == {**others, **dict.fromkeys(keys, "written")}
        assert fsck(store, clock=landing.clock).clean
    assert len(seen) == 4


def test_regions_may_change_between_the_two_runs(tmp_path: Path) -> None:
    two = declared_fields(({"transform": "bucket", "source": "id", "n": 2},), SCHEMA)
    start = given(tmp_path, None)
    for number, store in enumerate(left_by_crashes(start.store, lambda store: start.at(store).ingest())):
        landing = start.at(store, seed=1000 + number)
        keys = having(landing)
        if not keys or landing.log.snapshot().version > start.log.snapshot().version:
            continue
        change_regions(landing.log, two)
        with landing.table.routing_writer() as writer:
            writer.put([{"id": key, "name": "written"} for key in KEYS])
        landing.ingest()
        others = {key: name for key, name in EXPECTED.items() if key not in keys}
        assert landing.names() == {**others, **dict.fromkeys(keys, "written")}


def test_files_that_land_after_the_crash_do_not_hide_the_files_before_it(tmp_path: Path) -> None:
    start = given(tmp_path, None)
    left = left_by_crashes(start.store, lambda store: start.at(store).ingest())
    start.land("00", {"id": 100, "name": "late file"})
    for number, store in enumerate(left):
        landing = start.at(store, seed=1000 + number)
        landing.ingest()
        assert landing.names() == {**EXPECTED, 100: "late file"}


@pytest.mark.parametrize("more", [False, True], ids=["one run", "one run and a run of a later file"])
def test_two_runs_that_race_apply_each_record_once(tmp_path: Path, *, more: bool) -> None:
    """At every third request of one run, another run executes. With `more`, a third run ingests a later file.

    When the third run ingests its file, the regions no longer list the names of the earlier files.
    """
    start = given(tmp_path, None)
    requests = 0

    def count(*_: object) -> None:
        nonlocal requests
        requests += 1

    start.at(FaultStore(copy_of(start.store, "count"), watch=count)).ingest()
    for when in range(0, requests, 3):
        store = copy_of(start.store, f"both-{when}")
        race(start, store, when, more=more)
        if more:
            landing = start.at(store, seed=4)
            landing.ingest()
            assert landing.names() == {**EXPECTED, **dict.fromkeys(LATER, "later")}
            assert records(landing, read_registry(store).regions) == RECORDS + len(LATER)
            (tmp_path / "landing" / "9").unlink()
        else:
            judge(start.at(store, seed=5))


LATER = range(100, 109)


def race(start: KeyedLanding, store: ObjectStore, when: int, *, more: bool) -> None:
    seen = 0

    def other(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == when + 1:
            start.at(store, seed=77).ingest()
            if more:
                start.land("9", *({"id": key, "name": "later"} for key in LATER))
                start.at(store, seed=79).ingest()

    with suppress(CommitConflict, Fenced):
        start.at(FaultStore(store, watch=other), seed=78).ingest()


@pytest.mark.parametrize("change", [lambda landing: landing.table.merge_all(), lambda landing: landing.table.sort()])
def test_a_merge_or_a_sort_between_the_two_runs_changes_nothing(
    tmp_path: Path, change: Callable[[KeyedLanding], object]
) -> None:
    start = given(tmp_path, "lsn")
    for number, store in enumerate(left_by_crashes(start.store, lambda store: start.at(store).ingest())):
        landing = start.at(store, seed=1000 + number)
        change(landing)
        landing.ingest()
        assert landing.names() == EXPECTED
        assert landing.rows()[5]["price"] == 5.0


def test_a_retry_of_the_quarantine_may_end_at_any_request(tmp_path: Path) -> None:
    start = make_landing(tmp_path, replace(KEYED, region_specs=THREE_REGIONS), op="_op")
    for number in range(2):
        start.land(f"{number}", *({"id": key, "name": f"{number}", "op": "c"} for key in KEYS), {"id": 1, "_op": "?"})
    start.ingest()
    start.declare(op="op")
    left = left_by_crashes(start.store, lambda store: start.at(store).retry())
    for number, store in enumerate(left):
        landing = start.at(store, seed=1000 + number)
        landing.retry()
        assert landing.names() == dict.fromkeys(KEYS, "1")
        assert records(landing, read_registry(store).regions) == 2 * len(KEYS)
        assert len(landing.reasons()) == 2
        assert landing.retry().status == "nothing_to_do"


def test_the_files_of_a_dead_run_are_collected(tmp_path: Path) -> None:
    start = given(tmp_path, None)
    left = left_by_crashes(start.store, lambda store: start.at(store).ingest())
    store = left[len(left) // 2]
    landing = start.at(store, seed=9)
    judge(landing)
    report = collect(store, landing.log, clock=landing.clock, horizon_ms=0)
    assert any(each.key.endswith("/records.arrow") for each in report.candidates)
    assert landing.names() == EXPECTED
