"""Tests of the contract of every object store, for backends to subclass (docs/architecture/object-store.md).

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self) -> ObjectStore:
            return MyStore(...)

Each test gets a new, empty store. Listings are compared as sets, because a store need not keep an order. An ETag may be
a hash of the content. The tests therefore replace an object only by different content, so that the ETag changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, InvalidInput, NotFound
from storage_core.store.contract import (
    Blob,
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    ObjectStore,
    Overwrite,
    PutMode,
    PutResult,
)
from storage_core.store.meter import MeteredStore
from tests.support.scale import scaled

RACERS = 32
ROUNDS = scaled(20)
LARGE_BYTES = 33 * 2**20 + 1

ILLEGAL_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "splits/../../outside",
    "splits/./a",
    "splits//a",
    "splits/",
    "splits/a\x00b",
    "splits/a\nb",
    "splits/a\x7fb",
    "splits\\a",
    "splits/\ud800",
    ".tmp/a",
    "a" * 1025,
)

T = TypeVar("T")


class StoreConformance:
    """Subclass this class as `Test…`, and provide the fixture `store`."""

    def test_an_object_is_read_back_as_it_was_written(self, store: ObjectStore) -> None:
        etag = _committed(store.put("splits/all/a.parquet", b"content", IfAbsent()))
        blob = store.get("splits/all/a.parquet")
        assert blob.data == b"content"
        assert blob.etag == etag

    def test_an_empty_object_and_a_memoryview_are_objects_too(self, store: ObjectStore) -> None:
        _committed(store.put("empty", b"", IfAbsent()))
        _committed(store.put("view", memoryview(bytearray(b"xyz")), IfAbsent()))
        assert store.get("empty").data == b""
        assert store.head("empty").size == 0
        assert store.get_range("empty", 0, 0) == b""
        assert store.get("view").data == b"xyz"

    def test_a_second_create_of_the_same_key_conflicts_and_changes_nothing(self, store: ObjectStore) -> None:
        etag = _committed(store.put("k", b"first", IfAbsent()))
        assert store.put("k", b"second", IfAbsent()) == Conflict()
        assert store.get("k").data == b"first"
        assert store.head("k").etag == etag

    def test_a_fresh_etag_swaps_and_a_stale_one_conflicts(self, store: ObjectStore) -> None:
        first = _committed(store.put("k", b"1", IfAbsent()))
        second = _committed(store.put("k", b"2", IfMatch(first)))
        assert second != first
        assert store.put("k", b"3", IfMatch(first)) == Conflict()
        assert store.get("k").data == b"2"
        assert store.get("k").etag == second

    def test_a_swap_of_a_missing_key_conflicts_and_creates_nothing(self, store: ObjectStore) -> None:
        etag = _committed(store.put("k", b"1", IfAbsent()))
        store.delete(["k"])
        assert store.put("k", b"2", IfMatch(etag)) == Conflict()
        with pytest.raises(NotFound):
            store.get("k")

    def test_bodies_that_differ_by_a_nonce_never_share_an_etag(self, store: ObjectStore) -> None:
        etags = [_committed(store.put("k", b"same, nonce 0", IfAbsent()))]
        for nonce in range(1, 51):
            etags.append(_committed(store.put("k", b"same, nonce %d" % nonce, IfMatch(etags[-1]))))
        assert len(set(etags)) == len(etags)
        for stale in etags[:-1]:
            assert store.put("k", b"late", IfMatch(stale)) == Conflict()

    def test_overwrite_creates_and_replaces(self, store: ObjectStore) -> None:
        _committed(store.put("k", b"1", Overwrite()))
        _committed(store.put("k", b"22", Overwrite()))
        assert store.get("k").data == b"22"

    def test_exactly_one_of_32_concurrent_creates_commits_in_each_round(self, store: ObjectStore) -> None:
        with ThreadPoolExecutor(RACERS) as pool:
            for number in range(ROUNDS):
                _race_of_puts(pool, store, f"round-{number}", IfAbsent())

    def test_exactly_one_of_32_concurrent_swaps_commits_in_each_round(self, store: ObjectStore) -> None:
        etag = _committed(store.put("k", b"start", IfAbsent()))
        with ThreadPoolExecutor(RACERS) as pool:
            for _ in range(ROUNDS):
                etag = _race_of_puts(pool, store, "k", IfMatch(etag))

    def test_no_increment_is_lost_among_concurrent_swappers(self, store: ObjectStore) -> None:
        _committed(store.put("counter", b"0", IfAbsent()))

        def increment(_: int) -> None:
            while True:
                blob = store.get("counter")
                if isinstance(store.put("counter", b"%d" % (int(blob.data) + 1), IfMatch(blob.etag)), Committed):
                    return

        _race(increment, racers=8)
        assert store.get("counter").data == b"8"

    def test_a_reader_sees_whole_objects_only_while_they_are_replaced(self, store: ObjectStore) -> None:
        bodies = {letter * 200_000 for letter in (b"a", b"b")}
        _committed(store.put("k", b"a" * 200_000, IfAbsent()))

        def act(racer: int) -> set[bytes]:
            if racer < 2:
                for _ in range(10):
                    store.put("k", b"ab"[racer : racer + 1] * 200_000, Overwrite())
                return set()
            return {store.get("k").data for _ in range(10)}

        assert set().union(*_race(act, racers=4)) <= bodies

    def test_a_range_is_exact_and_a_short_object_is_corrupt(self, store: ObjectStore) -> None:
        _committed(store.put("k", b"0123456789", IfAbsent()))
        assert store.get_range("k", 2, 5) == b"234"
        assert store.get_range("k", 0, 10) == b"0123456789"
        assert store.get_range("k", 4, 4) == b""
        with pytest.raises(Corrupt, match="k"):
            store.get_range("k", 5, 11)
        for start, end in ((-1, 2), (3, 2)):
            with pytest.raises(InvalidInput):
                store.get_range("k", start, end)

    def test_a_large_object_is_created_once_swapped_once_and_read_in_pieces(self, store: ObjectStore) -> None:
        first, second = (random.Random(seed).randbytes(LARGE_BYTES) for seed in range(2))
        etag = _committed(store.put("large", memoryview(first), IfAbsent()))
        assert store.put("large", second, IfAbsent()) == Conflict()
        assert store.get("large") == Blob(first, etag)
        swapped = _committed(store.put("large", second, IfMatch(etag)))
        assert swapped != etag
        assert store.put("large", first, IfMatch(etag)) == Conflict()
        assert store.head("large").size == LARGE_BYTES
        for start, end in ((0, 1), (2**24 - 1, 2**24 + 1), (LARGE_BYTES - 1, LARGE_BYTES)):
            assert store.get_range("large", start, end) == second[start:end]
        _committed(store.put("large", first, Overwrite()))
        assert store.get("large").data == first

    def test_a_missing_object_is_not_found_by_every_read(self, store: ObjectStore) -> None:
        _committed(store.put("folder/object", b"", IfAbsent()))
        for key in ("nothing", "folder", "folder/object/below", "folder/nothing"):
            for read in (store.get, store.head, lambda missing: store.get_range(missing, 0, 1)):
                with pytest.raises(NotFound, match=key):
                    read(key)
            assert store.local_path(key) is None

    def test_head_tells_size_etag_and_modification(self, store: ObjectStore) -> None:
        etag = _committed(store.put("k", b"12345", IfAbsent()))
        info = store.head("k")
        assert (info.key, info.size, info.etag) == ("k", 5, etag)
        assert info.last_modified_ms > 0

    def test_head_tells_the_age_of_an_object(self, store: ObjectStore) -> None:
        _committed(store.put("k", b"12345", IfAbsent()))
        assert 0 <= store.head("k").age_ms < HOUR_MS
        assert [info.age_ms for info in store.list("k")] == [0]

    def test_list_matches_the_prefix_as_text(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "a/b/3", "ab", "b/1"):
            _committed(store.put(key, key.encode(), IfAbsent()))
        assert _keys(store, "") == {"a/1", "a/2", "a/b/3", "ab", "b/1"}
        assert _keys(store, "a") == {"a/1", "a/2", "a/b/3", "ab"}
        assert _keys(store, "a/") == {"a/1", "a/2", "a/b/3"}
        assert _keys(store, "a/b") == {"a/b/3"}
        assert _keys(store, "a/1") == {"a/1"}
        assert _keys(store, "c/") == set()

    def test_list_starts_after_a_key_that_need_not_exist(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "a/b/3", "ab", "b/1"):
            _committed(store.put(key, b"", IfAbsent()))
        assert _keys(store, "", "a/2") == {"a/b/3", "ab", "b/1"}
        assert _keys(store, "", "a/b") == {"a/b/3", "ab", "b/1"}
        assert _keys(store, "a/", "a/b/2") == {"a/b/3"}
        assert _keys(store, "a/", "z") == set()

    def test_list_gives_the_figures_of_head(self, store: ObjectStore) -> None:
        _committed(store.put("a/1", b"123", IfAbsent()))
        assert list(store.list("a/")) == [store.head("a/1")]

    def test_a_deleted_object_is_gone_and_its_key_is_free(self, store: ObjectStore) -> None:
        _committed(store.put("a/1", b"1", IfAbsent()))
        assert store.delete(["a/1", "a/never"]) == {"a/1": None, "a/never": None}
        assert _keys(store, "") == set()
        _committed(store.put("a/1", b"2", IfAbsent()))
        assert store.get("a/1").data == b"2"

    @pytest.mark.parametrize("key", ILLEGAL_KEYS)
    def test_a_key_that_could_leave_the_root_is_refused_by_every_call(self, store: ObjectStore, key: str) -> None:
        _committed(store.put("kept", b"1", IfAbsent()))
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.head(key),
            lambda: store.put(key, b"", IfAbsent()),
            lambda: store.put(key, b"", Overwrite()),
            lambda: store.put(key, b"", IfMatch("x")),
            lambda: store.local_path(key),
            lambda: store.delete(["kept", key]),
        )
        for call in calls:
            with pytest.raises(InvalidInput):
                call()
        assert _keys(store, "") == {"kept"}

    @pytest.mark.parametrize("prefix", ["..", "../", "a/../", "/", "a//", "a\x00", ".tmp/"])
    def test_a_prefix_that_could_leave_the_root_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidInput):
            list(store.list(prefix))

    def test_percent_encoded_and_unicode_segments_are_plain_text_to_the_store(self, store: ObjectStore) -> None:
        keys = {"quarantine/a%2Fb/x", "quarantine/%2E%2E/x", "quarantine/ä €/x", "quarantine/a b/x"}
        for key in keys:
            _committed(store.put(key, key.encode(), IfAbsent()))
        assert _keys(store, "quarantine/") == keys
        assert all(store.get(key).data == key.encode() for key in keys)

    def test_a_local_path_holds_exactly_the_object(self, store: ObjectStore) -> None:
        _committed(store.put("a/1", b"123", IfAbsent()))
        path = store.local_path("a/1")
        assert path is None or path.read_bytes() == b"123"

    def test_every_request_is_counted_once_by_kind(self, store: ObjectStore) -> None:
        metered = MeteredStore(store)
        metered.put("a", b"1234", IfAbsent())
        metered.put("a", b"12", IfAbsent())
        metered.get("a")
        metered.get_range("a", 1, 3)
        metered.head("a")
        assert [info.key for info in metered.list("")] == ["a"]
        metered.local_path("a")
        metered.delete(["a", "b"])
        with pytest.raises(NotFound):
            metered.get("a")
        assert metered.requests == {"get": 3, "put": 2, "list": 1, "head": 1, "delete": 1}
        assert (metered.bytes_read, metered.bytes_written) == (6, 6)


class WriteNumberConformance:
    """Tests for stores whose ETags contain a write number. Each write gets a new ETag, even with equal bytes.

    The store contract does not require a new ETag for equal bytes.
    """

    def test_writing_equal_bytes_again_makes_a_new_etag_each_time(self, store: ObjectStore) -> None:
        etags = [_committed(store.put("k", b"same", IfAbsent()))]
        for _ in range(50):
            etags.append(_committed(store.put("k", b"same", IfMatch(etags[-1]))))
        assert len(set(etags)) == len(etags)
        assert store.put("k", b"late", IfMatch(etags[0])) == Conflict()


def _committed(result: PutResult) -> str:
    assert isinstance(result, Committed), result
    return result.etag


def _keys(store: ObjectStore, prefix: str, start_after: str | None = None) -> set[str]:
    found = [info.key for info in store.list(prefix, start_after)]
    assert len(found) == len(set(found)), "a key was listed twice without a concurrent writer"
    return set(found)


def _race_of_puts(pool: ThreadPoolExecutor, store: ObjectStore, key: str, mode: PutMode) -> str:
    """Run all puts at once.

    Assert that one put commits, that the others conflict, and that the object has the winner's body.

    Returns:
        The ETag of the winner.
    """
    barrier = Barrier(RACERS)
    bodies = [f"{mode} {racer}".encode() for racer in range(RACERS)]

    def put(body: bytes) -> PutResult:
        barrier.wait()
        return store.put(key, body, mode)

    results = list(pool.map(put, bodies))
    winners = [
        (body, result.etag) for body, result in zip(bodies, results, strict=True) if isinstance(result, Committed)
    ]
    assert len(winners) == 1, results
    assert results.count(Conflict()) == RACERS - 1, results
    body, etag = winners[0]
    assert store.get(key) == Blob(body, etag)
    return etag


def _race(act: Callable[[int], T], racers: int) -> list[T]:
    barrier = Barrier(racers)

    def start(racer: int) -> T:
        barrier.wait()
        return act(racer)

    with ThreadPoolExecutor(racers) as pool:
        return list(pool.map(start, range(racers)))
