from __future__ import annotations

import io

import pytest

from storage_core.base.errors import NotFound
from storage_core.store.contract import IfAbsent, ObjectFile, exists
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore


@pytest.fixture
def store() -> MeteredStore:
    store = MemoryStore("read")
    store.put("k", b"0123456789", IfAbsent())
    return MeteredStore(store)


def test_whether_an_object_exists_costs_one_head(store: MeteredStore) -> None:
    assert exists(store, "k")
    assert not exists(store, "k2")
    assert (store.requests["head"], store.requests["get"]) == (2, 0)


def test_an_object_reads_like_a_file(store: MeteredStore) -> None:
    file = ObjectFile(store, "k", 10)
    assert (file.read(3), file.tell(), file.read()) == (b"012", 3, b"3456789")
    assert file.read(1) == b""
    assert (file.seek(-4, io.SEEK_END), file.read(2), file.seek(-20, io.SEEK_CUR), file.read(1)) == (6, b"67", 0, b"0")
    assert io.BufferedReader(file, 4).read(9) == b"123456789"
    with pytest.raises(NotFound):
        ObjectFile(store, "gone", 10).read(1)


def test_what_lies_behind_the_end_costs_no_request(store: MeteredStore) -> None:
    file = ObjectFile(store, "k", 10)
    file.seek(10)
    assert (file.read(5), store.requests["get"]) == (b"", 0)


def test_reading_ahead_asks_for_more_while_reads_go_on_where_the_last_ended(store: MeteredStore) -> None:
    file = ObjectFile(store, "k", 10, ahead=2)
    assert [(file.read(1), store.requests["get"]) for _ in range(7)] == [
        (b"0", 1),
        (b"1", 1),
        (b"2", 2),
        (b"3", 2),
        (b"4", 2),
        (b"5", 2),
        (b"6", 3),
    ]
    assert (file.read(), store.requests["get"]) == (b"789", 3)
    file.seek(1)
    assert (file.read(1), file.read(1), file.read(2), store.requests["get"]) == (b"1", b"2", b"34", 5)
    assert store.bytes_read == 2 + 4 + 4 + 2 + 4
