"""Neither a compaction nor the next catch-up indexes a row again if the row only moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from storage_core.base.errors import CommitConflict, NotFound
from storage_core.change.creation import configure
from storage_core.compact import execute
from storage_core.data.formats import keys
from storage_core.data.formats.bundle import Numbers, TranslationMap, pack_translation
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.index.row_positions import load_map
from storage_core.index.segments import MOST_MOVES, compute_coverage
from storage_core.log.actions import TRANSLATIONS_FEATURE, RemoveIndexSegment, RemoveTranslation, Translation
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.maintain.history import restore
from storage_core.read.search.plan import covered
from storage_core.store.contract import Overwrite
from tests.support.indexed_table import (
    CONFIG,
    HERE,
    NEAR,
    TAG_VALUES,
    TAGS,
    TEXT,
    WITH_PLACES,
    IndexedTable,
    bytes_of,
    watermarks,
)
from tests.support.searching import search

TRANSLATIONS = "_indices/_translations/"
VOCABULARY = [f"word{number}" for number in range(2_000)]


def filled(splits: int = 3, rows: int = 20, *, config: TableConfig = CONFIG) -> IndexedTable:
    """Make a table with rows of every tag in one window.

    The rows are in the given number of splits without segments.
    """
    table = IndexedTable(config=config)
    for split in range(splits):
        table.append(
            [(0, TAG_VALUES[(split + row) % 4], ("ebb", "tide flood", "tide")[row % 3]) for row in range(rows)]
        )
    return table


def caught_up(splits: int = 3, rows: int = 20) -> IndexedTable:
    table = filled(splits, rows)
    table.catch_up()
    table.retokenised = 0
    return table


def require_same_as_built_anew(table: IndexedTable) -> None:
    """Check that rows, scores and order of every search equal those of a newly built index."""
    head = table.snapshot
    anew = replace(head, segments={})
    for index, query in (("text", "tide"), ("text", "ebb flood"), ("tags", "x"), ("tags", ["y", "z"])):
        found, expected = (search(table.store, each, query, index=index, limit=1_000) for each in (head, anew))
        assert found.equals(expected), (index, query)


def test_a_compaction_of_an_indexed_table_leaves_nothing_to_index() -> None:
    table = caught_up()
    after = table.compact()
    assert watermarks(after) == {"text": after.version, "tags": after.version}
    assert all(catch_up.plan(after, name).empty for name in ("text", "tags"))
    table.catch_up()
    assert table.retokenised == 0
    assert {each.covers[0] for each in after.segments.values()}.isdisjoint(after.splits)
    assert covered(after, index="text")["scanned"] == []
    table.require_exact(after)
    require_same_as_built_anew(table)


def test_an_answer_does_not_read_the_splits_that_segments_answer_for() -> None:
    table = caught_up(rows=300)
    head = table.compact()
    before = table.store.bytes_read
    assert table.found(head, "text", "nowhere") == []
    (split,) = head.splits.values()
    assert table.store.bytes_read - before < split.size + sum(each.size for each in head.segments.values())
    fetched = sum(each.size for each in head.segments.values() if each.index == "text")
    assert table.store.bytes_read - before == fetched


def test_translations_are_small_beside_the_segments() -> None:
    table, draw = IndexedTable(), random.Random(1)
    for _ in range(10):
        table.append([(0, draw.choice(TAG_VALUES), " ".join(draw.choices(VOCABULARY, k=12))) for _ in range(2_000)])
    table.catch_up()
    segments = sum(each.size for each in table.snapshot.segments.values())
    before = bytes_of(table.store, "_indices/")
    table.compact()
    assert bytes_of(table.store, "_indices/") - before == bytes_of(table.store, TRANSLATIONS) <= 0.05 * segments
    require_same_as_built_anew_of(table, ["word1", "word7 word9"])


def test_a_compaction_of_many_rows_indexes_none_again_and_keeps_watermarks_and_answers() -> None:
    config = replace(CONFIG, indexes=(TEXT, TAGS, NEAR))
    table, draw = IndexedTable(config=config, schema=WITH_PLACES), random.Random(2)
    for _ in range(10):
        table.append([(0, draw.choice(TAG_VALUES), " ".join(draw.choices(VOCABULARY, k=12))) for _ in range(600)])
    before = table.catch_up()
    table.retokenised, written = 0, bytes_of(table.store, "_indices/")
    after = table.compact()
    assert len(after.splits) < len(before.splits)
    assert watermarks(after) == dict.fromkeys(("text", "tags", "near"), after.version)
    segments = sum(each.size for each in after.segments.values())
    assert bytes_of(table.store, "_indices/") - written <= 0.05 * segments
    caught_up = table.catch_up()
    assert table.retokenised == 0
    for asked in ({"query": "word1 word7", "index": "text"}, {"query": "x", "index": "tags"}, {"vector": HERE}):
        first, *others = (search(table.store, each, limit=50, **asked) for each in (before, after, caught_up))
        assert first.num_rows
        assert all(other.equals(first) for other in others), asked


def require_same_as_built_anew_of(table: IndexedTable, queries: list[str]) -> None:
    anew = replace(table.snapshot, segments={})
    for query in queries:
        found = search(table.store, table.snapshot, query, index="text", limit=100)
        assert found.num_rows
        assert found.equals(search(table.store, anew, query, index="text", limit=100))


def test_rows_are_followed_through_several_outputs_and_rounds() -> None:
    table = caught_up(rows=60)
    first = table.compact(target_bytes=400)
    assert len(first.splits) > 1
    table.append([(0, "x", "tide ebb") for _ in range(30)])
    table.catch_up("tags")
    second = table.compact(target_bytes=400)
    assert watermarks(second)["tags"] == second.version
    table.require_exact(second)
    table.retokenised = 0
    table.catch_up()
    assert table.retokenised == 30  # only the rows that the lagging text index lacked
    table.require_exact(table.snapshot)
    require_same_as_built_anew(table)


def test_a_catch_up_of_a_split_that_was_compacted_meanwhile_commits_and_counts() -> None:
    table = filled()
    late = table.index("text")
    table.compact()
    after = table.commit_index(late)
    assert watermarks(after)["text"] == after.version
    assert not compute_coverage(after, TEXT).missing
    table.require_exact(after)


def test_only_the_rows_that_no_segment_answers_for_are_indexed() -> None:
    table = caught_up(splits=2)
    table.append([(0, "x", "ebb") for _ in range(7)])
    head = table.compact()
    assert compute_coverage(head, TEXT).answers.keys() == set(head.splits)
    assert covered(head, index="text")["scanned"] == sorted(head.splits)
    table.require_exact(head)
    assert watermarks(head)["text"] < head.version
    table.catch_up()
    assert table.retokenised == 2 * 7
    parts = [each for each in table.snapshot.segments.values() if each.origins is not None]
    assert [each.numRecords for each in parts] == [7, 7]
    table.require_exact(table.snapshot)
    require_same_as_built_anew(table)
    table.compact_alone()
    table.require_exact(table.snapshot)
    assert all(catch_up.plan(table.snapshot, name).empty for name in ("text", "tags"))


def test_deleted_rows_are_found_neither_before_nor_after_they_are_dropped() -> None:
    table = caught_up(rows=50)
    gone = {path: [0, 3] for path in table.snapshot.splits}
    table.delete(gone)
    table.require_exact(table.compact())
    table.delete({path: [1] for path in table.snapshot.splits})
    table.require_exact(table.snapshot)
    assert all(catch_up.plan(table.snapshot, name).empty for name in ("text", "tags"))


def test_rows_that_were_deleted_while_a_compaction_ran_are_not_found() -> None:
    table = caught_up(rows=50)
    moving = table.merge([sorted(table.snapshot.splits)])
    table.delete({path: [2, 7] for path in table.snapshot.splits})
    after = table.commit_merge(moving)
    assert watermarks(after)["text"] == after.version
    table.require_exact(after)


def test_a_segment_of_which_more_than_a_fifth_is_gone_is_built_anew() -> None:
    table = caught_up(splits=2, rows=20)
    first, second = sorted(table.snapshot.splits)
    table.delete({first: range(5), second: range(2)})
    table.compact()
    table.catch_up()
    assert table.retokenised == 2 * 15  # for both indexes, the remaining rows of the first split
    assert watermarks(table.snapshot)["text"] == table.snapshot.version
    assert first not in {each.covers[0] for each in table.snapshot.segments.values()}
    table.require_exact(table.snapshot)


def test_segments_whose_rows_moved_too_often_are_built_anew_and_translations_go() -> None:
    table = caught_up(splits=1)
    for _ in range(MOST_MOVES):
        table.compact_alone()
    table.catch_up()
    assert (table.retokenised, len(table.snapshot.translations)) == (0, MOST_MOVES)
    table.compact_alone()
    table.require_exact(table.snapshot)
    table.catch_up()
    assert table.retokenised == 2 * 20
    table.catch_up()
    assert table.snapshot.translations == {}
    table.require_exact(table.snapshot)


def test_a_table_without_an_index_has_no_translation_and_opens_in_older_releases() -> None:
    table = filled(config=replace(CONFIG, indexes=()))
    after = table.compact()
    assert after.translations == {}
    assert bytes_of(table.store, "_indices/") == 0
    assert TRANSLATIONS_FEATURE not in (after.protocol.readerFeatures or ())
    indexed = caught_up()
    assert TRANSLATIONS_FEATURE not in (indexed.snapshot.protocol.readerFeatures or ())
    assert TRANSLATIONS_FEATURE in (indexed.compact().protocol.readerFeatures or ())


def test_older_versions_and_restored_ones_are_answered_from_segments_too() -> None:
    table = caught_up()
    before = table.snapshot
    after = table.compact()
    table.append([(0, "x", "tide")])
    table.catch_up()
    for snapshot in (before, after):
        table.require_exact(table.log.snapshot(version=snapshot.version))
        assert watermarks(table.log.snapshot(version=snapshot.version))["text"] == snapshot.version
    for target in (before, after, before):
        head = restore(table.log, table.log.snapshot(version=target.version)).snapshot
        assert watermarks(head)["text"] == head.version
        table.require_exact(head)
    assert fsck(table.store, clock=table.clock, deep=True).clean


def test_the_collector_keeps_translations_as_long_as_a_version_needs_them() -> None:
    table = caught_up()
    table.compact()
    orphan = table.merge([sorted(table.snapshot.splits)])  # killed before its commit
    (moved,) = orphan.made[0][1].translations
    for _ in range(3):
        table.clock.now += 10_000
        collect(table.store, table.log, clock=table.clock)
    assert set() != translations_in(table) == set(table.snapshot.translations)
    assert moved.path not in translations_in(table)
    table.require_exact(table.snapshot)
    table.log.commit(
        table.snapshot, [RemoveTranslation(path=path) for path in table.snapshot.translations], operation="X"
    )
    table.append([(0, "x", "tide")])
    for _ in range(3):
        table.clock.now += 10_000
        table.log.checkpoint(table.snapshot)
        collect(table.store, table.log, clock=table.clock)
    assert translations_in(table) == set()
    table.require_exact(table.snapshot)


def translations_in(table: IndexedTable) -> set[str]:
    found = {info.key for info in table.store.list(TRANSLATIONS)}
    assert all(parsed is not None and parsed.kind is KeyKind.TRANSLATION for parsed in map(parse, found))
    return found


def gone(table: IndexedTable, translation: Translation) -> None:
    table.store.delete([translation.path])


def cut(table: IndexedTable, translation: Translation) -> None:
    table.store.put(translation.path, table.store.get(translation.path).data[:-1], Overwrite())


def flipped(table: IndexedTable, translation: Translation) -> None:
    data = bytearray(table.store.get(translation.path).data)
    data[12] ^= 1
    table.store.put(translation.path, bytes(data), Overwrite())


@pytest.mark.parametrize("damage", [gone, cut, flipped])
def test_a_damaged_translation_is_named_and_the_answer_is_exact_without_it(
    damage: Callable[[IndexedTable, Translation], None], caplog: pytest.LogCaptureFixture
) -> None:
    table = caught_up()
    head = table.compact()
    (translation,) = head.translations.values()
    damage(table, translation)
    with caplog.at_level("WARNING"):
        table.require_exact(head)
    assert translation.path in caplog.text
    kinds = {each.kind for each in fsck(table.store, clock=table.clock, deep=True).findings}
    assert kinds & {Kind.TRANSLATION_DAMAGED, Kind.TRANSLATION_MISSING}


def test_a_damaged_segment_whose_rows_moved_is_named_and_the_answer_is_exact_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = caught_up(splits=2)
    table.append([(0, "x", "ebb") for _ in range(7)])
    table.compact()
    table.catch_up()
    head = table.snapshot
    for segment in head.segments.values():
        data = table.store.get(segment.path).data
        table.store.put(segment.path, data[:-1], Overwrite())
        with caplog.at_level("WARNING"):
            table.require_exact(head)
        assert segment.path in caplog.text
        table.store.put(segment.path, data, Overwrite())


def forged(table: IndexedTable, head: Snapshot, order: Numbers) -> Snapshot:
    """Return the snapshot with a translation that is valid in form but maps to wrong rows."""
    (translation,) = head.translations.values()
    found = load_map(table.store, translation)
    identity = table.ids.uuid()
    packed = pack_translation(replace(found, order=order.astype(found.order.dtype)), identity=identity)
    path = keys.translation_key(identity)
    table.store.put(path, packed.data, Overwrite())
    other = replace(translation, path=path, size=len(packed.data), xxh3=packed.xxh3, footerOffset=packed.footer_offset)
    return replace(head, translations={path: other})


def test_a_translation_that_is_off_by_one_between_outputs_leads_to_no_wrong_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = caught_up(rows=60)
    head = table.compact(target_bytes=400)
    assert len(head.splits) > 1
    (translation,) = head.translations.values()
    order = load_map(table.store, translation).order
    for by in (1, -1):
        with caplog.at_level("WARNING"):
            table.require_exact(forged(table, head, np.roll(order, by)))
        assert "not the translation of the log" in caplog.text


@pytest.mark.parametrize("by", [1, -1])
def test_a_compaction_does_not_store_a_translation_that_is_off_by_one(
    by: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = caught_up()

    def wrong(*, order: Numbers, **others: Any) -> TranslationMap:
        return TranslationMap(order=np.roll(order, by), **others)

    monkeypatch.setattr(f"{execute.__name__}.TranslationMap", wrong)
    head = table.compact()
    assert head.translations == {}
    assert "no translation of" in caplog.text
    assert compute_coverage(head, TAGS).missing
    table.require_exact(head)


def test_the_removal_of_a_translation_that_a_new_segment_needs_is_left_out() -> None:
    table = filled()
    late = table.index("text")
    table.compact()
    planned = table.snapshot
    idle = tuple(planned.translations)
    assert catch_up.plan(planned, "tags").idle == ()  # a running catch-up may have indexed the old positions
    table.commit_index(late)
    with pytest.raises(CommitConflict):
        table.log.commit(planned, [RemoveTranslation(path=path) for path in idle], operation="CATCH UP")
    assert set(table.snapshot.translations) == set(idle)
    assert watermarks(table.snapshot)["text"] == table.snapshot.version


def test_dropping_the_last_index_drops_the_translations() -> None:
    table = caught_up()
    moving = table.merge([sorted(table.snapshot.splits)])
    table.compact()
    configure(table.log, table.snapshot, replace(CONFIG, indexes=()).to_configuration())
    head = table.snapshot
    assert (head.segments, head.translations) == ({}, {})
    with pytest.raises((CommitConflict, NotFound)):
        table.commit_merge(moving)


def test_a_state_holds_translations() -> None:
    table = caught_up()
    head = table.compact()
    table.log.checkpoint(head)
    again = table.log.snapshot(version=head.version)
    assert again.checkpoint_version == head.version
    assert again == head
    assert set(again.translations) == set(head.translations) != set()


def test_a_catch_up_under_way_keeps_its_work_when_another_index_is_dropped_or_redefined() -> None:
    for indexes in ((TEXT,), (TEXT, replace(TAGS, columns=("id",)))):
        table = filled()
        snapshot = table.snapshot
        text, tags = table.index(TEXT.name), table.index(TAGS.name)
        configure(table.log, snapshot, replace(CONFIG, indexes=indexes).to_configuration())
        built = [*text.built, *tags.built]
        actions = catch_up.actions_of([text.plan, tags.plan], built)
        found = table.log.commit(snapshot, actions, operation="CATCH UP").snapshot
        assert {each.index for each in found.segments.values()} == {TEXT.name}
        assert catch_up.plan(found, TEXT.name).empty
        with pytest.raises(CommitConflict, match="'tags' was dropped or redefined"):
            table.log.commit(snapshot, tags.plan.actions(tags.built), operation="CATCH UP")


def test_a_catch_up_under_way_merges_no_segments_of_an_index_that_was_dropped() -> None:
    table = filled()
    snapshot = table.catch_up()
    (old, *_) = (each for each in snapshot.segments.values() if each.index == TAGS.name)
    table.append([(0, TAG_VALUES[0], "tide")])
    text, head = table.index(TEXT.name), table.snapshot
    configure(table.log, head, replace(CONFIG, indexes=(TEXT,)).to_configuration())
    actions = [*text.plan.actions(text.built), RemoveIndexSegment(index=TAGS.name, path=old.path)]
    assert catch_up.plan(table.log.commit(head, actions, operation="CATCH UP").snapshot, TEXT.name).empty


def test_a_catch_up_under_way_keeps_its_work_beside_a_compaction_and_the_catch_up_of_another_index() -> None:
    table = filled()
    rows = sum(add.numRecords or 0 for add in table.snapshot.splits.values())
    under_way = table.index(TEXT.name)
    table.compact()
    table.compact_alone()
    table.catch_up(TAGS.name)
    table.commit_index(under_way)
    table.catch_up()
    assert table.retokenised == rows * len(CONFIG.indexes)
    table.require_exact(table.snapshot)
    table.catch_up()
    assert table.retokenised == rows * len(CONFIG.indexes)


def test_translations_go_once_no_index_lacks_the_rows_behind_them() -> None:
    table = filled()
    table.compact()
    table.catch_up(TEXT.name)
    assert table.snapshot.translations
    table.catch_up()
    table.catch_up()
    assert not table.snapshot.translations
