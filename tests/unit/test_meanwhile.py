"""An action of `repeatable` changes objects and ETags in the same way in all stores with equal objects."""

from __future__ import annotations

from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.copies import contents, copy_of
from tests.support.meanwhile import repeatable


def test_an_act_is_worked_out_once_for_stores_with_the_same_objects() -> None:
    worked = []

    def act(store: ObjectStore) -> int:
        worked.append(store.uri)
        store.delete(["gone"])
        store.put("changed", b"after", Overwrite())
        store.put("rewritten", b"same", Overwrite())
        store.put("new", b"new", Overwrite())
        return len(worked)

    start = MemoryStore("start")
    for key, data in {"gone": b"", "changed": b"before", "rewritten": b"same", "kept": b"same"}.items():
        start.put(key, data, Overwrite())
    first, second, other = copy_of(start, "first"), copy_of(start, "second"), copy_of(start, "other")
    other.put("kept", b"other", Overwrite())
    etags = {key: second.get(key).etag for key in ("rewritten", "kept")}
    again = repeatable(act)

    assert [again(store) for store in (first, second, other)] == [1, 1, 2]

    assert worked == [first.uri, other.uri]
    assert contents(second) == contents(first)
    assert [key for key, etag in etags.items() if second.get(key).etag != etag] == ["rewritten"]
    assert contents(other) == {**contents(first), "kept": b"other"}
