"""A primary-key index: lookups and merges give the same results as without it, with fewer requests or bytes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.base.errors import InvalidInput
from storage_core.change import creation
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.steps import CatchUp, Merge
from storage_core.index import catch_up
from storage_core.log.job_run import run
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.split import metadata
from storage_core.store.meter import RequestMeter, all_of
from storage_core.store.resolve import open_store
from storage_core.write.region import merge as merging
from storage_core.write.region.merge_work import MergeWork
from tests.support.damage import Damage, damage
from tests.support.keyed_index import (
    GROUPS,
    KEYS,
    ROWS,
    SCHEMA,
    SPLITS,
    RealTime,
    caught_up,
    filled,
    key,
    lookup,
    merge,
    rows,
    with_index,
)
from tests.support.keyed_table import commit_merges
from tests.support.s3_server import S3Server
from tests.support.same_hash import keys_of_one_hash
from tidemark import Table

ABSENT = key(SPLITS * ROWS + 1)


@pytest.fixture(autouse=True)
def _by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read splits by ranges, and give each split four row groups."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", ROWS // GROUPS)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**12)


def segments_of(table: Table) -> list[str]:
    return sorted(table.refresh().snapshot.segments)


@pytest.mark.parametrize(
    ("columns", "primary_key", "options", "why"),
    [
        (("n",), "id", {}, r"Name the columns of the table's primary_key in this order: \['id'\]"),
        (("id", "n"), "id", {}, "Name the columns of the table's primary_key"),
        (("n", "id"), ["id", "n"], {}, r"in this order: \['id', 'n'\]"),
        (("id",), None, {}, "needs a table with a primary_key"),
        (("id",), "id", {"hash": "md5"}, "has no options, found"),
        (("nothing",), "id", {}, "unknown column 'nothing'"),
    ],
)
def test_it_is_of_the_key_of_the_table_or_refused(
    columns: tuple[str, ...], primary_key: str | list[str] | None, options: dict[str, str], why: str
) -> None:
    index = IndexDefinition("keys", "primary_key", columns, options)
    with pytest.raises(InvalidInput, match=why):
        Table.create(f"memory://{uuid4()}", SCHEMA, primary_key=primary_key, indexes=(index,))


def test_releases_that_do_not_know_it_are_kept_away_by_a_feature() -> None:
    plain = filled()
    assert "primaryKeyIndexes" not in (plain.snapshot.protocol.readerFeatures or ())
    protocol = with_index(plain).snapshot.protocol
    assert "primaryKeyIndexes" in (protocol.readerFeatures or ())
    assert "primaryKeyIndexes" in (protocol.writerFeatures or ())


def test_no_search_takes_it() -> None:
    table = Table.create(f"memory://{uuid4()}", SCHEMA, primary_key="id", indexes=(KEYS,))
    with pytest.raises(InvalidInput, match="which cannot be searched"):
        table.search("x", index="keys")
    with pytest.raises(InvalidInput, match="no full-text or bitmap index"):
        table.search("x")


@pytest.mark.parametrize("wanted", [[key(4_321)], [ABSENT], [key(17), key(4_321), ABSENT, key(20_000)]])
def test_a_cold_lookup_takes_one_request_per_split_and_those_of_the_rows(wanted: list[str]) -> None:
    table = filled()
    plain = lookup(table, *wanted)
    indexed = lookup(with_index(table), *wanted)
    assert indexed.found == plain.found
    hits = sum(each is not None for each in plain.found)
    assert plain.gets == SPLITS * (1 + GROUPS) + hits, "of each split the footer and the keys of every row group"
    assert indexed.gets <= SPLITS * len(wanted) + 2 * hits, "of each split the blocks of the keys; a footer per hit"
    assert indexed.gets < plain.gets
    assert indexed.bytes < plain.bytes or len(wanted) == 4, "which are all blocks of so small a split"


def test_where_row_groups_are_bounded_by_the_key_a_cold_lookup_takes_no_more_requests() -> None:
    table = filled(time_column=None)
    for wanted in (key(4_321), ABSENT):
        plain, indexed = lookup(table, wanted), lookup(with_index(table), wanted)
        assert indexed.found == plain.found
        assert plain.gets == 2 * SPLITS + (wanted != ABSENT)
        assert indexed.gets == SPLITS + 2 * (wanted != ABSENT)
        table = filled(time_column=None)


def test_a_lookup_of_one_split_reads_its_keys_as_before() -> None:
    table = Table.create(f"memory://{uuid4()}", SCHEMA, primary_key="id")
    merge(table, rows(range(ROWS)))
    plain = lookup(table, key(5))
    assert lookup(with_index(table), key(5)) == plain
    assert "not used for 1 split: a read of the keys of these splits costs less" in str(
        Table.open(table.uri).explain_get(key(5))
    )


def test_explain_get_names_the_index_and_foretells_its_requests() -> None:
    table = with_index(filled())
    for wanted in (key(4_321), ABSENT):
        opened = Table.open(table.uri)
        opened.get(ABSENT, at=0)
        plan = opened.explain_get(wanted, consistency="snapshot")
        assert opened.explain_get(wanted, consistency="snapshot") == plan, "it keeps nothing"
        step = plan.base.steps[1]
        assert (step.name, step.splits) == ("primary-key index keys", SPLITS - (wanted != ABSENT))
        assert plan.requests == lookup(table, wanted, opened=opened).gets
        again = opened.explain_get(wanted, consistency="snapshot")
        assert again.requests == lookup(table, wanted, opened=opened).gets
        assert "primary-key index keys leaves out" in str(plan)


def test_many_lookups_fetch_a_segment_in_a_few_requests() -> None:
    table = with_index(filled())
    opened = Table.open(table.uri)
    absent = [key(SPLITS * ROWS + number) for number in range(1, 200)]
    gets = [lookup(table, each, opened=opened).gets for each in absent]
    blocks = -(-ROWS // 1024)
    assert sum(gets) <= SPLITS * blocks
    assert sum(gets[20:]) == 0, "every block is in memory"


def test_the_next_process_finds_blocks_on_disk(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "64")
    table = with_index(filled(s3_server.uri(f"keys/{uuid4()}")))
    first, second = (lookup(table, ABSENT) for _ in range(2))
    assert first.found == second.found == [None]
    assert first.gets >= SPLITS
    assert second.gets == first.gets - SPLITS


def test_a_local_lookup_reads_no_split_that_does_not_have_the_key(tmp_path: Path) -> None:
    table = with_index(filled(str(tmp_path / "t")))
    opened = Table.open(table.uri)
    assert opened.get(ABSENT) is None
    found = opened.get(key(4_321))
    assert found is not None
    assert found["n"] == 4_321
    known = [add for add in opened.snapshot.splits.values() if opened._verified.is_known(add)]
    assert len(known) == 1, "of all others nothing was read, not even to verify it"


def test_segments_of_generations_become_those_of_the_base() -> None:
    table = filled(indexes=(KEYS,))
    assert catch_up.watermark(table.snapshot, "keys") == table.version
    assert caught_up(table) == 0
    plain = filled()
    for wanted in (key(4_321), ABSENT):
        assert lookup(table, wanted).found == lookup(plain, wanted).found
    assert fsck(open_store(table.uri), clock=RealTime(table.store).clock, deep=True).clean


def test_a_compaction_of_an_indexed_table_indexes_nothing_and_lookups_stay_exact() -> None:
    table, plain = with_index(filled()), filled()
    for one in (table, plain):
        with one.writer() as writer:
            writer.delete([key(number) for number in range(0, 600, 7)])
            writer.put(rows(range(600, 660), seed=2))
            writer.flush()
        RealTime(one.store).merge_all()
    caught_up(table)
    mark = catch_up.watermark(table.snapshot, "keys")
    for one in (table, plain):
        assert RealTime(one.store).compact() is not None
    assert len(table.refresh().snapshot.splits) < SPLITS
    assert catch_up.watermark(table.snapshot, "keys") == table.version >= mark
    assert caught_up(table) == 0
    wanted = [*map(key, range(0, 700, 3)), ABSENT]
    assert lookup(table, *wanted).found == lookup(plain, *wanted).found
    for each in wanted[:40]:
        assert lookup(table, each).found == lookup(plain, each).found


PAIRS = pa.schema(
    [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64(), nullable=False), ("n", pa.int64())]
)


def test_keys_of_one_hash_are_told_apart_by_lookups_and_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = keys_of_one_hash(3_000)
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 100)
    index = IndexDefinition("keys", "primary_key", ("a", "b"))
    table = Table.create(f"memory://{uuid4()}", PAIRS, primary_key=["a", "b"])
    here, gone = alike.slice(0, 2_990), alike.slice(2_990).to_pylist()
    for part in range(5):
        merge(table, here.take(list(range(part, 2_990, 5))).append_column("n", pa.array(range(598))))
    with_index(table, index)
    pairs = here.slice(1_000, 8).to_pylist()
    step = table.explain_get(pairs[0], consistency="snapshot").base.steps[1]
    assert (step.name, step.note) == ("primary-key index keys", ""), "it was asked"
    for pair in pairs:
        assert lookup(table, pair).found == [{**pair, "n": (pair["a"]) // 5}]
    assert lookup(table, *pairs).found == [{**pair, "n": pair["a"] // 5} for pair in pairs]
    assert lookup(table, *gone).found == [None] * 10
    with table.writer() as writer:
        writer.patch([{**pairs[0], "n": -1}])
        writer.delete([gone[0], pairs[1]])
        writer.flush()
    RealTime(table.store).merge_all()
    table.refresh()
    assert table.snapshot.rows == 2_989
    assert lookup(table, pairs[0], pairs[1], pairs[2]).found == [
        {**pairs[0], "n": -1},
        None,
        {**pairs[2], "n": pairs[2]["a"] // 5},
    ]


def changed(table: Table, count: int) -> tuple[RequestMeter, MergeWork]:
    """Return the requests of the tasks of a merge that has `count` records. Also return the work of this merge."""
    with table.writer() as writer:
        writer.patch([{"id": key(number * 7), "n": -1} for number in range(count)])
        writer.flush()
    [work] = [MergeWork.from_json(each.to_json()) for each in merging.plan(table.store, table.refresh().snapshot)]
    meter = RequestMeter()
    with table.store.counted_by(meter):
        done = merging.execute(table.store, work, ids=table.log.ids, now_ms=1)
    commit_merges(table.log, table.snapshot, [work], [done])
    table.refresh()
    return meter, work


@pytest.mark.parametrize("count", [1, 5, 2_000])
def test_a_merge_of_few_records_reads_the_keys_of_splits_that_have_them(count: int) -> None:
    plain, table = filled(), with_index(filled())
    (without, _), (with_it, work) = changed(plain, count), changed(table, count)
    assert {*work.answering} == {add.path for add in work.base}
    if count < 100:
        assert with_it.requests["get"] < without.requests["get"]
    else:
        assert with_it.requests == without.requests, "it needs the keys of all splits anyway"
    wanted = [key(number * 7) for number in range(min(count, 100))]
    found = lookup(table, *wanted).found
    assert found == lookup(plain, *wanted).found
    assert {each["n"] for each in found if each} == {-1}
    assert table.snapshot.rows == plain.snapshot.rows == SPLITS * ROWS


@pytest.mark.parametrize("kind", list(Damage))
def test_a_damaged_segment_is_a_warning_and_no_other_answer(kind: Damage, caplog: pytest.LogCaptureFixture) -> None:
    table = with_index(filled())
    before = lookup(table, key(4_321), ABSENT).found
    paths = segments_of(table)
    for number, path in enumerate(paths):
        if kind is not Damage.SWAP or number % 2:
            damage(table.store, path, kind, seed=number, other=paths[number - 1])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for number in range(0, SPLITS * ROWS, 2_011):
            assert lookup(table, key(number)).found[0] is not None
        assert lookup(table, key(4_321), ABSENT).found == before
        merge(table, rows([4_321], seed=9))
    assert table.snapshot.rows == SPLITS * ROWS
    assert "is not usable" in caplog.text
    found = fsck(open_store(table.uri), clock=RealTime(table.store).clock, deep=True).findings
    assert {each.key for each in found if each.kind in (Kind.SEGMENT_DAMAGED, Kind.SEGMENT_MISSING)} >= {paths[1]}


def test_threads_that_share_a_table_find_every_row() -> None:
    opened = Table.open(with_index(filled()).uri)
    numbers = range(0, SPLITS * ROWS, 331)
    found = all_of(lambda number: opened.get(key(number), consistency="snapshot"), numbers, 8)
    assert [each and each["n"] for each in found] == [*numbers]


@pytest.mark.spark
def test_the_jobs_catch_up_and_merge_with_it_on_spark(tmp_path: Path, spark: Spark) -> None:
    table = filled(str(tmp_path / "t"))
    settings = replace(table.config, indexes=(KEYS,)).to_configuration()
    creation.configure(table.log, table.snapshot, settings)
    report = run(CatchUp(table_uri=table.uri), spark)
    assert report.status == "committed"
    assert catch_up.watermark(table.refresh().snapshot, "keys") == table.version
    with table.writer() as writer:
        writer.patch([{"id": key(4_321), "n": -1}])
        writer.delete([key(17)])
        writer.flush()
    assert run(Merge(table_uri=table.uri), spark).status == "committed"
    found = lookup(table, key(4_321), key(17), key(18)).found
    assert [each and each["n"] for each in found] == [-1, None, 18]
