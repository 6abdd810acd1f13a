from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats import arrow_files
from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.ingest.convert import Quarantined, RejectedLine, quarantined, write_quarantine
from storage_core.write.late_rows import Kept, keep
from tests.support.rejected_lines import rejected_lines

LINES = [
    RejectedLine("a/b c.log", 3, "the line does not match the pattern", 'caf\xe9 "q"'),
    RejectedLine("a/b c.log", 9, "the line is not UTF-8", "/w==", "base64"),
]


def test_rejections_are_kept_with_file_line_and_reason() -> None:
    store = MemoryStore("quarantine")
    key = write_quarantine(store, "a/b c.log", 100, LINES).key
    parsed = parse(key)
    assert parsed is not None
    assert parsed.kind is KeyKind.QUARANTINE
    common = {"key": key, "source": "a/b c.log", "size": 100}
    assert list(rejected_lines(store)) == [
        common | {"line": 3, "reason": LINES[0].reason, "text": 'caf\xe9 "q"', "encoding": "utf-8"},
        common | {"line": 9, "reason": LINES[1].reason, "text": "/w==", "encoding": "base64"},
    ]


def test_the_same_rejections_are_one_object_and_others_another() -> None:
    store = MemoryStore("quarantine")
    first = write_quarantine(store, "a.log", 100, LINES)
    assert first.is_new
    assert write_quarantine(store, "a.log", 100, LINES) == Kept(first.key, is_new=False)
    others = {
        write_quarantine(store, "a.log", 101, LINES).key,
        write_quarantine(store, "b.log", 100, LINES).key,
        write_quarantine(store, "a.log", 100, LINES[:1]).key,
    }
    assert first.key not in others
    assert len(others) == 3
    assert len(list(store.list("quarantine/"))) == 4


def test_a_damaged_entry_is_named_and_a_foreign_object_left_alone() -> None:
    store = MemoryStore("quarantine")
    key = write_quarantine(store, "a.log", 100, LINES).key
    store.put("quarantine/readme.txt", b"not ours", Overwrite())
    assert len(list(rejected_lines(store))) == 2
    store.put(key, b"{}", Overwrite())
    with pytest.raises(Corrupt, match=key):
        list(rejected_lines(store))


def test_an_entry_of_a_newer_format_is_refused() -> None:
    store = MemoryStore("quarantine")
    key = write_quarantine(store, "a.log", 100, LINES).key
    newer = store.get(key).data.replace(b'"formatVersion":1', b'"formatVersion":3').replace(b'": 1', b'": 3')
    store.put(key, newer, Overwrite())
    with pytest.raises(Unsupported, match="format 3"):
        list(rejected_lines(store))


@pytest.mark.parametrize("version", ["0", "-1", "1.5", "null", '"1"', "[]"])
def test_an_entry_of_a_format_that_never_was_is_damage(version: str) -> None:
    line = json.dumps({"source": "a.log", "size": 1, "rejected": [{"line": 1, "reason": "r"}]})
    data = f'{{"formatVersion": {version}, {line[1:]}'.encode()
    with pytest.raises(Corrupt, match="the key"):
        arrow_files.decode_quarantine(data, "the key", arrow_files.id_of(data))


def test_what_stands_in_quarantine_is_counted_until_somebody_removes_it() -> None:
    store = MemoryStore("quarantine")
    assert quarantined(store) == Quarantined({}, unread=0)
    rows = QuarantinedRows(source="a.log", size=7, reason="late", by="x", arrived_ms=5, rows=pa.table({"n": [1]}))
    keep(store, rows)
    assert quarantined(store).lines == 0
    keys = [write_quarantine(store, f"{name}.log", 100, LINES).key for name in "ab"]
    assert quarantined(store) == Quarantined({LINES[0].reason: 2, LINES[1].reason: 2}, unread=0)
    assert quarantined(store, most=1).unread == 2
    keep(store, replace(rows, source="append"))
    assert quarantined(store, most=3).unread == 0, "rows of appends are no lines, and are not read"
    store.delete(keys)
    assert quarantined(store).lines == 0


def test_rows_whose_values_reach_outside_of_their_bytes_are_damage() -> None:
    """Arrow does not check an offset before it reads the value, and then reads foreign memory."""
    rows = pa.table({"text": ["aa", "bb", "cc"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    offsets = struct.pack("<4i", 0, 2, 4, 6)
    hostile = sink.getvalue().to_pybytes().replace(offsets, struct.pack("<4i", 0, 2**30, 4, 6))
    sound = QuarantinedRows(source="s", reason="r", by="b", arrived_ms=1, rows=rows)
    body = {**json.loads(arrow_files.encode_quarantine(sound)), "rows": base64.b64encode(hostile).decode()}
    data = json.dumps(body, sort_keys=True).encode()
    with pytest.raises(Corrupt, match="q: the quarantine entry is not an Arrow stream"):
        arrow_files.decode_quarantine(data, "q", arrow_files.id_of(data))
