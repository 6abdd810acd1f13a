"""Index segments of generations: written by flushes and distributors, used by searches, and never required."""

from __future__ import annotations

import itertools
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, InvalidInput, Unavailable
from storage_core.change.definition import check_definition
from storage_core.data.formats import keys, region_manifest
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.region_manifest import Generation
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import fulltext
from storage_core.index.text_files import open_searcher
from storage_core.log.actions import Metadata
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.split.context import context_of
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions, generation, generation_write, router
from storage_core.write.region.generation_write import SortingTerms, SortingWork, of_base
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.records import SEGMENT_ROWS, RecordBuilder, WriterOptions
from storage_core.write.region.spec import list_regions, whole_table
from tests.support.clock import ManualClock
from tests.support.damage import Damage, damage
from tests.support.fault_store import FaultStore
from tests.support.keyed_table import KeyedTable
from tests.support.listed_hits import listed
from tests.support.searching import search

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("tag", pa.string())])
WORDS = IndexDefinition("words", "fulltext", ("text",))
TAGS = IndexDefinition("tags", "bitmap", ("tag",))
EVERY_GENERATION = WriterOptions(segment_rows=1)

_names = itertools.count()


def new_table(*indexes: IndexDefinition) -> KeyedTable:
    config = TableConfig(
        primary_key=("id",),
        indexes=indexes,
        checkpoint_interval=0,
        version_retention_ms=HOUR_MS,
        gc_horizon_ms=HOUR_MS,
    )
    clock = ManualClock(step_ms=1)
    store = FaultStore(MemoryStore(f"segments-{next(_names)}", clock=clock))
    return KeyedTable(store, clock=clock).create(SCHEMA, config)


def row(number: int, text: str | None, tag: str | None = None) -> dict[str, object]:
    return {"id": number, "text": text, "tag": tag}


def found(table: KeyedTable, query: str, index: str, cache: Path | None = None) -> list[dict[str, Any]]:
    snapshot = table.snapshot
    waiting = captured_regions.capture(table.store, snapshot, include_wal=True).parts(snapshot)
    rows: list[dict[str, Any]] = search(
        table.store, snapshot, query, index=index, limit=100, unmerged=waiting, cache_dir=cache
    ).to_pylist()
    return rows


def generations(table: KeyedTable) -> list[Generation]:
    (state,) = list_regions(table.store, table.snapshot)
    manifest = read_latest(table.store, state.region_id)
    assert manifest is not None
    return [generation.read(table.store, state.region_id, each) for each in manifest.flushed_generations]


def segment_keys(table: KeyedTable) -> list[str]:
    """Return the keys of the segments that unmerged generations name, in order."""
    merged = max(table.snapshot.merged_generations.values(), default=0)
    waiting = [each for each in generations(table) if each.generation > merged]
    return [of_base(each, own).path for each in waiting for own in each.segments]


def define(table: KeyedTable, *indexes: IndexDefinition) -> None:
    snapshot = table.snapshot
    config = replace(snapshot.config, indexes=indexes)
    metadata: Metadata = replace(snapshot.metadata, configuration=config.to_configuration())
    table.log.commit(snapshot, [metadata], operation="CONFIGURE")


def two_generations(table: KeyedTable) -> KeyedTable:
    """Make a base row and a generation. A second generation and the log change some rows of the first generation."""
    with table.writer(EVERY_GENERATION) as writer:
        writer.put([row(1, "ebb ebb"), row(2, "flood")])
        writer.flush()
        table.merge()
        writer.put([row(2, "ebb", "x"), row(3, "ebb tide", "x"), row(4, "ebb", "x"), row(5, "neap tide", "y")])
        writer.flush()
        writer.delete(3)
        writer.patch({"id": 4, "text": "spring tide"})
        writer.flush()
        writer.put(row(6, "ebb", "y"))
    return table


def test_a_flush_writes_one_segment_per_index_before_the_manifest_that_names_them() -> None:
    table = new_table(WORDS, TAGS)
    assert isinstance(table.store, FaultStore)
    with table.writer(EVERY_GENERATION) as writer:
        writer.put(row(1, "ebb", "x"))
        before = len(table.store.trace)
        writer.flush()
        requests = [each.request for each in table.store.trace[before:] if each.request.kind == "put"]
    names = [each.key.rpartition("/")[2] for each in requests if "_gen_" in each.key]
    assert [each.key for each in requests[:2]] == segment_keys(table)
    assert names == ["bloom_filter.bin", "key_index.arrow", "_manifest.json"]
    assert len(requests) == 2 + len(names) + 2  # plus the region's manifest and its hint
    assert [(each.index, each.rows) for each in generations(table)[0].segments] == [("words", 1), ("tags", 1)]


def test_a_small_generation_and_one_without_a_whole_row_get_no_segment() -> None:
    table = new_table(WORDS, TAGS)
    with table.writer() as writer:
        writer.put(row(1, "ebb"))
        writer.flush()
    with table.writer(EVERY_GENERATION) as writer:
        writer.patch({"id": 1, "tag": "x"})
        writer.delete(2)
        writer.flush()
    assert [each.segments for each in generations(table)] == [(), ()]
    assert segment_keys(table) == []
    assert [each["id"] for each in found(table, "ebb", "words")] == [1]


def test_a_search_answers_from_segments_and_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(WORDS)
    with table.writer(EVERY_GENERATION) as writer:
        for number in range(3):
            writer.put([row(number, "ebb"), row(10 + number, "flood")])
            writer.flush()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    assert [each["id"] for each in found(table, "ebb", "words", tmp_path / "cache")] == [0, 1, 2]
    for key in segment_keys(table):
        table.store.delete([key])
    assert [each["id"] for each in found(table, "ebb", "words", tmp_path / "cache")] == [0, 1, 2]
    with pytest.raises(
        Unavailable, match="No such file or directory"
    ):  # without a segment and a copy, the search must build a segment
        found(table, "ebb", "words", tmp_path / "empty")


def test_a_search_fetches_a_segment_once_and_opens_splits_with_hits_only(tmp_path: Path) -> None:
    table = new_table(WORDS)
    assert isinstance(table.store, FaultStore)
    with table.writer(EVERY_GENERATION) as writer:
        writer.put([row(1, "ebb"), row(2, "flood")])
        writer.flush()
        table.merge()
        writer.put([row(2, "ebb"), row(3, "neap")])
        writer.flush()
    snapshot = table.snapshot
    (split,) = snapshot.splits
    (segment,) = segment_keys(table)
    (merged,) = snapshot.segments
    (moved,) = snapshot.translations
    waiting = captured_regions.capture(table.store, snapshot, include_wal=True).parts(snapshot)

    def requests(query: str) -> list[tuple[str, str]]:
        before = len(table.store.trace)  # type: ignore[attr-defined]  # narrowed above
        search(table.store, snapshot, query, index="words", unmerged=waiting, cache_dir=tmp_path)
        return [(each.request.kind, each.request.key) for each in table.store.trace[before:]]  # type: ignore[attr-defined]

    assert sorted(requests("neap")) == [("get", merged), ("get", segment)], "side by side, so in any order"
    assert requests("neap") == []
    assert requests("ebb") == [("get", moved), ("get", split), ("get", split)]  # the split's keys, then its rows


@pytest.mark.parametrize("kind", [Damage.MISSING, Damage.TRUNCATION, Damage.BIT_FLIP], ids=lambda each: each.name)
def test_a_segment_that_is_lost_or_damaged_costs_time_and_no_answer(
    kind: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    table = two_generations(new_table(WORDS, TAGS))
    questions = [("ebb", "words"), ("tide OR flood", "words"), ("NOT tide", "words"), ("x", "tags"), ("y", "tags")]
    sound = [found(table, *each) for each in questions]
    assert [[row["id"] for row in rows] for rows in sound] == [[1, 2, 6], [4, 5], [1, 2, 6], [2, 4], [5, 6]]
    assert len(segment_keys(table)) == 2
    for key in segment_keys(table):
        damage(table.store, key, kind, seed=3)
    with caplog.at_level(logging.WARNING):
        assert [found(table, *each) for each in questions] == sound
    assert "is not usable, indexing it" in caplog.text


def test_scores_are_those_of_one_index_over_all_rows_of_the_base_of_generations_and_of_the_rest(tmp_path: Path) -> None:
    table = two_generations(new_table(WORDS))
    base, first = ["ebb ebb", "flood"], ["ebb", "ebb tide", "ebb", "neap tide"]
    rest = ["spring tide", "ebb"]  # the patched row 4, and the row in the WAL
    corpus = pa.table({"text": pa.array([*base, *first, *rest])})
    (tmp_path / "one").mkdir()
    for name, data in fulltext.build(corpus, WORDS).items():
        (tmp_path / "one" / name).write_bytes(data)
    hits = fulltext.parse("ebb", WORDS).hits(open_searcher([tmp_path / "one"], WORDS, tmp_path), 100)
    scores = {hit.row: hit.score for hit in listed(hits)}
    assert {each["id"]: each["score"] for each in found(table, "ebb", "words")} == {
        1: scores[0],
        2: scores[2],
        6: scores[7],
    }


def test_a_merge_of_rows_that_supersede_none_changes_no_score() -> None:
    table = new_table(WORDS)
    with table.writer(EVERY_GENERATION) as writer:
        writer.put([row(1, "ebb"), row(2, "ebb flood")])
        writer.flush()
        writer.put([row(3, "ebb ebb ebb")])
        writer.patch({"id": 4, "text": "neap"})
        before = found(table, "ebb", "words")
        writer.flush()
    table.merge()
    assert found(table, "ebb", "words") == before
    assert len({each["score"] for each in before}) == 3


def test_an_index_that_is_added_or_changed_between_generations_answers_for_all_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stemmed = IndexDefinition("words", "fulltext", ("text",), {"tokenizer": "en_stem"})
    table = new_table(WORDS)
    for number, indexes in enumerate([(WORDS,), (WORDS, TAGS), (stemmed, TAGS)]):
        define(table, *indexes) if number else None
        with table.writer(EVERY_GENERATION) as writer:
            writer.put(row(number, "ebb tides", "x"))
            writer.flush()
    assert [[each.index for each in one.segments] for one in generations(table)] == [
        ["words"],
        ["words", "tags"],
        ["words", "tags"],
    ]
    with caplog.at_level(logging.WARNING):
        assert [each["id"] for each in found(table, "x", "tags")] == [0, 1, 2]
        assert [each["id"] for each in found(table, "tide", "words")] == [0, 1, 2]  # `tides` is not stemmed
    assert caplog.text == ""


def test_an_index_that_cannot_be_built_costs_the_generation_its_segment_and_not_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(WORDS, TAGS)
    with table.writer(EVERY_GENERATION) as writer:
        writer.put(row(1, "ebb", "x"))
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
            assert writer.flush() == 1
    assert [each.index for each in generations(table)[0].segments] == ["tags"]
    assert "gets no segment of index words" in caplog.text
    assert [each["id"] for each in found(table, "ebb", "words")] == [1]


def test_distributed_and_sorted_generations_of_many_rows_have_segments_too(tmp_path: Path) -> None:
    table = new_table(TAGS)
    builder, context = RecordBuilder(SCHEMA, ("id",)), context_of(table.snapshot)
    for size in (SEGMENT_ROWS - 1, SEGMENT_ROWS):
        records = builder.puts(
            pa.table([pa.array(range(size)), pa.nulls(size, pa.string()), pa.array(["x"] * size)], schema=SCHEMA)
        )
        region = whole_table(table.snapshot.table_id)
        turn = router.claim_region(table.store, table.snapshot, region, clock=table.clock, ids=table.ids)
        written = router.write_distributed(
            table.store, records, ("id",), turn=turn, clock=table.clock, ids=table.ids, context=context
        )
        router.finish(table.store, turn, written.path, [], clock=table.clock, writer_id=table.ids.uuid())
    assert [[each.index for each in one.segments] for one in generations(table)] == [[], ["tags"]]
    before = found(table, "x", "tags", tmp_path)
    (planned,) = generation_write.plan_sort(table.store, table.snapshot, terms=SortingTerms(generations=1))
    work = SortingWork.from_json(planned.to_json())
    result = generation_write.execute_sort(table.store, work, clock=table.clock, ids=table.ids)
    generation_write.finish(table.store, work, result, clock=table.clock, writer_id=table.ids.uuid())
    assert [[each.index for each in one.segments] for one in generations(table)] == [["tags"]]
    assert found(table, "x", "tags", tmp_path) == before
    assert len(before) == 100


def test_segments_are_kept_while_their_generation_is_not_merged_and_then_as_long_as_the_log_names_them() -> None:
    table = new_table(WORDS, TAGS)
    with table.writer(EVERY_GENERATION) as writer:
        writer.put([row(number, "ebb", "x") for number in range(10)])
        writer.flush()
        writer.put([row(number, "flood", "y") for number in range(8)])
        writer.flush()
    superseded, waiting = segment_keys(table)[:2], segment_keys(table)

    def stored() -> set[str]:
        collect(table.store, table.log, clock=table.clock, horizon_ms=0)
        return {info.key for info in table.store.list("_indices/") if info.key.endswith(".seg")}

    assert stored() == set(waiting)
    table.merge()
    assert set(table.snapshot.segments) == set(waiting) - set(superseded)
    table.log.checkpoint(table.snapshot)
    for _ in range(4):
        table.clock.sleep_ms(2 * HOUR_MS)
        collect(table.store, table.log, clock=table.clock)
    assert stored() == set(table.snapshot.segments)
    assert fsck(table.store, clock=table.clock, deep=True).clean


@pytest.mark.parametrize("change", [{"id": "../x"}, {"index": "a/b"}, {"rows": "1"}], ids=str)
def test_a_generation_that_names_a_segment_that_cannot_be_is_damaged(change: dict[str, Any]) -> None:
    found = generations(two_generations(new_table(WORDS)))[1]
    wrong = replace(found, segments=(replace(found.segments[0], **change),))
    with pytest.raises(Corrupt, match="not a generation manifest"):
        region_manifest.decode_generation(region_manifest.encode_generation(wrong), "m.json")


def test_a_table_says_which_of_its_indexes_generations_have_segments_of() -> None:
    table = new_table(WORDS, TAGS)
    snapshot = table.snapshot
    config = replace(snapshot.config, maintained_indexes=("tags",))
    table.log.commit(
        snapshot, [replace(snapshot.metadata, configuration=config.to_configuration())], operation="CONFIGURE"
    )
    with table.writer(EVERY_GENERATION) as writer:
        writer.put(row(1, "ebb", "x"))
        writer.flush()
    assert [each.index for each in generations(table)[0].segments] == ["tags"]
    assert table.snapshot.config.maintained_indexes == ("tags",)
    with pytest.raises(InvalidInput, match=r"maintained_indexes: unknown index 'x'\. The table has words, tags"):
        check_definition(SCHEMA, replace(config, maintained_indexes=("x",)))


def test_fsck_names_a_damaged_segment_of_a_generation() -> None:
    table = two_generations(new_table(TAGS))
    assert fsck(table.store, clock=table.clock).clean
    (key,) = segment_keys(table)
    table.store.put(key, b"TIDEMKB1", Overwrite())
    findings = [each for each in fsck(table.store, clock=table.clock).findings if each.key == key]
    assert [each.kind for each in findings] == [Kind.GENERATION_SEGMENT_DAMAGED]


@pytest.mark.parametrize("name", [".seg", "a.b.seg", "words.segment", "words.seg.seg"])
def test_only_names_of_indexes_name_segments_of_generations(name: str) -> None:
    region, directory = "5b0f3c1e-2f3a-4d52-9a52-0f6c2f7d9a11", "0123abcd_gen_7"
    parsed = keys.parse(keys.generation_file_key(region, directory, "words.seg"))
    assert parsed is not None
    assert (parsed.kind, parsed.generation, parsed.name) == (KeyKind.GENERATION_FILE, 7, "words.seg")
    assert keys.parse(f"_mem_wal/{region}/{directory}/{name}") is None
