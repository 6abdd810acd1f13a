from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from storage_core.store.contract import Conflict, IfAbsent, ObjectInfo
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore, RequestMeter


def test_a_listing_costs_one_request_per_thousand_keys() -> None:
    store = MemoryStore("pages")
    for number in range(2001):
        store.put(f"k{number:05}", b"", IfAbsent())
    for prefix, requests in (("k", 3), ("k0000", 1), ("none", 1), ("k000", 1)):
        metered = MeteredStore(store)
        list(metered.list(prefix))
        assert metered.requests["list"] == requests
    metered = MeteredStore(store)
    assert len(list(metered.list("k0", "k01000"))) == 1000
    assert metered.requests["list"] == 1


def test_deleting_costs_one_request_per_thousand_keys_and_none_for_no_keys() -> None:
    metered = MeteredStore(MemoryStore("deletes"))
    metered.delete([])
    assert metered.requests["delete"] == 0
    metered.delete([f"k{number}" for number in range(1001)])
    assert metered.requests["delete"] == 2


def test_a_put_that_conflicts_is_counted_with_its_bytes() -> None:
    metered = MeteredStore(MemoryStore("conflicts"))
    metered.put("k", b"12", IfAbsent())
    assert metered.put("k", b"123", IfAbsent()) == Conflict()
    assert metered.requests["put"] == 2
    assert metered.bytes_written == 5


def test_several_stores_share_one_meter_and_no_count_is_lost() -> None:
    meter = RequestMeter()
    stores = [MeteredStore(MemoryStore(f"shared{number}"), meter) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda store: [store.put(f"k{each}", b"1", IfAbsent()) for each in range(500)], stores))
    assert meter.requests == {"get": 0, "put": 2000, "list": 0, "head": 0, "delete": 0}
    assert meter.bytes_written == 2000


def test_the_returned_counts_are_a_copy() -> None:
    metered = MeteredStore(MemoryStore("copy"))
    metered.requests["get"] = 100
    assert metered.requests["get"] == 0


def test_a_wave_begins_where_no_request_is_under_way() -> None:
    both, calls = Barrier(2), list[str]()

    class Slow(MemoryStore):
        def head(self, key: str) -> ObjectInfo:
            both.wait(60)
            return super().head(key)

    metered = MeteredStore(Slow("waves"))
    metered.put("a", b"1", IfAbsent())
    metered.get("a")
    with ThreadPoolExecutor(2) as pool:
        calls += [info.key for info in pool.map(metered.head, ["a", "a"])]
    assert (calls, metered.meter.round_trips) == (["a", "a"], 3)


def test_another_meter_counts_what_is_asked_meanwhile() -> None:
    metered, other = MeteredStore(MemoryStore("meanwhile")), RequestMeter()
    metered.put("a", b"12", IfAbsent())
    with metered.counted_by(other):
        metered.get("a")
        metered.get_range("a", 0, 1)
        metered.delete([])
    metered.get("a")
    assert (other.requests["get"], other.bytes_read, other.round_trips) == (2, 3, 2)
    assert (metered.requests["get"], metered.requests["put"], metered.requests["delete"]) == (3, 1, 0)
