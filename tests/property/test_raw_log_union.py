"""The union of a raw log's three damaged stores contains the acknowledged records. A reader reports every loss.

The oracle is a dictionary of the acknowledged records of each writer. The oracle also contains the chunks that are
intact on at least one store. From these records and chunks alone, the oracle computes the records that must be read and
the losses that must be reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.data.formats.keys import ChunkKey, parse_raw
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.formats.raw_fields import decode_fields
from storage_core.store.contract import IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms, left
from storage_core.write.raw_log.history import CLOSED_AFTER_MS, Gap, read_columns, union
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.damage import Damage as Harm
from tests.support.damage import damage
from tests.support.ids import SeededIds
from tests.support.scale import scaled

STORES = 3


@dataclass
class Written:
    """The acknowledged values of the producers, by writer and chunk number."""

    chunks: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def whole(self, left: set[tuple[str, int]]) -> dict[str, list[int]]:
        """Return the values of each writer in order, for the chunks that are left."""
        return {
            writer: [value for number, values in sorted(chunks.items()) if (writer, number) in left for value in values]
            for writer, chunks in self.chunks.items()
        }

    def gaps(self, left: set[tuple[str, int]], listed: set[tuple[str, int]]) -> set[Gap]:
        """Return the gaps that a reader must report.

        A gap is a range of lost sequence numbers before a later listed chunk.
        """
        found: set[Gap] = set()
        for writer, chunks in self.chunks.items():
            sequence = start = 0
            for number, values in sorted(chunks.items()):
                if (writer, number) in left:
                    if start < sequence:
                        found.add(Gap(writer=writer, first=start + 1, last=sequence))
                    start = sequence + len(values)
                sequence += len(values)
            behind = [number for number in chunks if (writer, number) in listed]
            kept = [number for number in chunks if (writer, number) in left]
            if behind and max(behind) > max(kept, default=0):
                found.add(Gap(writer=writer, first=start + 1, last=None))
        return found


def _write(random: Random) -> tuple[MemoryStore, Written]:
    """Return one store with all acknowledged records of a few writers.

    The writers append one after another, or interleaved.
    """
    store, clock, written, value = MemoryStore("whole"), ManualClock(), Written(), 0
    logs = [
        RawLog([store], clock=clock, ids=SeededIds(random.getrandbits(32)), limits=RawLimits(segment_ms=1_000))
        for _ in range(random.randint(1, 3))
    ]
    for _ in range(random.randint(1, 15)):
        log = random.choice(logs)
        rows = [{"value": value + index} for index in range(random.randint(1, 4))]
        value += len(rows)
        log.append("t", rows)
        chunks = written.chunks.setdefault(log.writer_id, {})
        chunks[len(chunks) + 1] = [row["value"] for row in rows]
        clock.now += random.choice([0, 0, 300, 1_500])
    return store, written


def _harm(store: MemoryStore, random: Random) -> None:
    """Remove random ranges of objects. Damage, copy or swap some of the remaining objects."""
    keys = sorted(info.key for info in store.list(""))
    for _ in range(random.randint(0, 3)):
        start = random.randrange(len(keys))
        store.delete(keys[start : start + random.randint(1, 5)])
    for key in sorted(info.key for info in store.list("")):
        drawn = random.random()
        if drawn < 0.15:
            damage(store, key, random.choice([Harm.TRUNCATION, Harm.BIT_FLIP, Harm.EMPTY]), seed=random.getrandbits(16))
        elif drawn < 0.25:
            copied = key.replace("live/1", f"live/{random.choice('123')}", 1)
            store.put(copied, store.get(key).data, IfAbsent())
        elif drawn < 0.3:
            store.put(f"{key}.part", store.get(key).data, IfAbsent())
    left = sorted(info.key for info in store.list("live/") if info.key.endswith(".avro"))
    if len(left) > 1 and random.random() < 0.3:
        first, second = random.sample(left, 2)
        if store.get(first).data != store.get(second).data:
            damage(store, first, Harm.SWAP, other=second)


def _left(whole: ObjectStore, stores: list[MemoryStore]) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return two sets: the chunks with an intact copy under their own name and number, and all listed chunks."""
    sound = {(key.writer, key.number): whole.get(info.key).data for info in whole.list("") if (key := _key(info.key))}
    left, listed = set(), set()
    for store in stores:
        for info in store.list(""):
            if key := _key(info.key):
                listed.add((key.writer, key.number))
                if store.get(info.key).data == sound[key.writer, key.number]:
                    left.add((key.writer, key.number))
    return left, listed


def _key(text: str) -> ChunkKey | None:
    found = parse_raw(text)
    return found if isinstance(found, ChunkKey) else None


def values_of(chunk: RawColumns) -> list[int]:
    return [decode_fields(text)["value"] for text in chunk.records.column("fields").to_pylist()]


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(150))
@example(0)
def test_the_union_is_what_was_acknowledged_and_what_no_store_has_is_a_gap(seed: int) -> None:
    random = Random(seed)
    whole, written = _write(random)
    stores = [copy_of(whole, f"store-{index}") for index in range(STORES)]
    for store in stores:
        if random.random() < 0.8:
            _harm(store, random)
    left, listed = _left(whole, stores)
    found: dict[str, list[int]] = {writer: [] for writer in written.chunks}
    gaps = set()
    for each in union(stores).read():
        if isinstance(each, RawColumns):
            found[each.key.writer] += values_of(each)
        elif isinstance(each, Gap):
            gaps.add(each)
    assert found == written.whole(left)
    assert gaps == written.gaps(left, listed)


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(60))
def test_distribution_in_any_rounds_gives_each_record_once_and_each_writer_in_order(seed: int) -> None:
    random = Random(seed)
    whole, written = _write(random)
    visible = [MemoryStore("a"), MemoryStore("b")]
    positions: dict[str, int] = {}
    distributed: dict[str, list[int]] = {writer: [] for writer in written.chunks}
    infos = sorted((info.key for info in whole.list("")), key=lambda key: (key.split("/")[1], key))
    while infos or positions != {writer: len(chunks) for writer, chunks in written.chunks.items()}:
        for key in infos[: random.randint(1, 4)]:
            for store in random.sample(visible, random.randint(1, 2)):
                store.put(key, whole.get(key).data, IfAbsent())
            infos.remove(key)
        now_ms = ManualClock().now + (0 if infos else 10 * CLOSED_AFTER_MS)
        plan = left(union(visible), positions, Terms(), now_ms=now_ms)
        for ref in plan.chunks:
            chunk = read_columns(visible, ref)
            assert isinstance(chunk, RawColumns)
            distributed[ref.writer] += values_of(chunk)
        positions = dict(plan.offsets)
        assert not plan.given_up
    assert distributed == {
        writer: [v for _, each in sorted(chunks.items()) for v in each] for writer, chunks in written.chunks.items()
    }
