from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats import arrow_files
from storage_core.data.formats.arrow_files import DoneLines, Entry, QuarantinedRows, Receipt, RejectedLines
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from storage_core.write.late_rows import QuarantineResult
from tests.support.rejected_lines import rejected_lines

LINES = [
    RejectedLine("a/b c.log", 3, "the line does not match the pattern", 'caf\xe9 "q"'),
    RejectedLine("a/b c.log", 9, "the line is not UTF-8", "/w==", "base64"),
]


GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CONTENT = "00f1e2d3c4b5a697"


def shared_lines() -> list[Entry]:
    lines = (
        {"line": 2, "reason": "the line is not valid JSON", "text": "b\u00e4d", "encoding": "utf-8"},
        {"line": 5, "reason": "the line is not UTF-8", "text": "/w==", "encoding": "base64"},
    )
    whole = ({"line": None, "reason": "it is a zip archive", "text": "", "encoding": "utf-8"},)
    return [
        RejectedLines(source="a.ndjson", size=70, rejected=lines, content=CONTENT, landed_ms=1_700_000_000_000),
        RejectedLines(source="b.csv", size=9, rejected=lines[:1], content=CONTENT, landed_ms=None, header="id,city"),
        RejectedLines(source="c.zip", size=4, rejected=whole, content="etag:0123456789abcdef", landed_ms=5),
    ]


def shared_rows() -> list[Entry]:
    rows = pa.table({"at": pa.array([1, None, 3], pa.timestamp("us", "UTC")), "name": ["a", None, "c"]})
    common: dict[str, Any] = {"reason": "late", "by": "ingest", "content": CONTENT}
    return [
        QuarantinedRows(source="a.ndjson", size=70, arrived_ms=7, rows=rows.slice(0, 2), lines=(1, 2), **common),
        QuarantinedRows(source="b.ndjson", size=71, arrived_ms=8, rows=rows.slice(2), lines=(9,), **common),
    ]


RECEIPT = Receipt(
    number=3,
    done=(
        DoneLines(source="a.ndjson", size=70, content=CONTENT, lines=(1, 2, 3, 7)),
        DoneLines(source="append", size=None, content="entry:6f4dd3c6-3a0a-5d0e-9a43-7a1a5f0b6a53", lines=(0,)),
    ),
)


def golden_objects() -> dict[str, bytes]:
    """Return the bytes that this release writes for the objects in the folder of golden files."""
    return {
        "quarantine-3-lines.json": arrow_files.encode_shared(shared_lines()),
        "quarantine-3-rows.json": arrow_files.encode_shared(shared_rows()),
        "quarantine-4.json": arrow_files.encode_receipt(RECEIPT),
    }


@pytest.mark.parametrize("name", ["quarantine-3-lines.json", "quarantine-3-rows.json", "quarantine-4.json"])
def test_this_release_reads_and_writes_the_golden_objects(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    if "rows" not in name:  # another release of Arrow may compress rows differently
        assert golden_objects()[name] == data
    if name == "quarantine-4.json":
        assert arrow_files.decode_receipt(data, "q", arrow_files.id_of(data)) == RECEIPT
        assert arrow_files.decode_quarantine(data, "q", arrow_files.id_of(data)) == ()
    else:
        expected = shared_rows() if "rows" in name else shared_lines()
        assert list(arrow_files.decode_quarantine(data, "q", arrow_files.id_of(data))) == expected


@pytest.mark.parametrize(
    "harm",
    [
        {"lines": [[1, 9]]},
        {"lines": [[1, 10**15]]},
        {"lines": [["a", 2]]},
        {"lines": None},
        {"arrivedAt": "soon"},
    ],
)
def test_damage_of_a_shared_object_is_named(harm: dict[str, object]) -> None:
    body = json.loads(arrow_files.encode_shared(shared_rows()))
    body["entries"][0] |= harm
    data = json.dumps(body).encode()
    with pytest.raises(Corrupt, match="the key"):
        arrow_files.decode_quarantine(data, "the key", arrow_files.id_of(data))


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
    assert write_quarantine(store, "a.log", 100, LINES) == QuarantineResult(first.key, is_new=False)
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
    newer = store.get(key).data.replace(b'"formatVersion":1', b'"formatVersion":5').replace(b'": 1', b'": 5')
    store.put(key, newer, Overwrite())
    with pytest.raises(Unsupported, match="format 5"):
        list(rejected_lines(store))


@pytest.mark.parametrize("version", ["0", "-1", "1.5", "null", '"1"', "[]"])
def test_an_entry_of_a_format_that_never_was_is_damage(version: str) -> None:
    line = json.dumps({"source": "a.log", "size": 1, "rejected": [{"line": 1, "reason": "r"}]})
    data = f'{{"formatVersion": {version}, {line[1:]}'.encode()
    with pytest.raises(Corrupt, match="the key"):
        arrow_files.decode_quarantine(data, "the key", arrow_files.id_of(data))


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
