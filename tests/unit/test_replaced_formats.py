"""Small JSON objects that are replaced have a permanent byte format and can be read back."""

from __future__ import annotations

import pytest

from storage_core.data.formats import documents
from storage_core.data.formats.documents import Candidate, CheckpointHint, CheckpointKind, LeaseRecord, Tag, Tags
from storage_core.data.formats.json_document import number, text
from storage_core.data.formats.keys import lock_key
from storage_core.data.formats.kinds import Reason
from storage_core.log.listing import decode_boundary, encode_boundary


def test_tags_have_the_golden_bytes_and_read_back() -> None:
    nightly = Tag(name="nightly", version=7, created_at_ms=1_000, expires_at_ms=2_000, id="i-1")
    kept = Tag(name="kept", version=3, created_at_ms=500, expires_at_ms=None, id="i-2")
    written = documents.encode_tags(Tags({"nightly": nightly, "kept": kept}, 4, "etag"), nonce="n")
    assert written == (
        b'{"format":1,"counter":5,"nonce":"n","tags":{"kept":{"version":3,"createdAtMs":500,"id":"i-2"},'
        b'"nightly":{"version":7,"createdAtMs":1000,"expiresAtMs":2000,"id":"i-1"}}}'
    )
    assert documents.decode_tags(written, etag="next") == Tags({"kept": kept, "nightly": nightly}, 5, "next")


def test_the_plan_of_the_collector_has_the_golden_bytes_and_reads_back() -> None:
    later = Candidate(key="b", reason=Reason.OLD_STATE, size=9, first_seen_ms=20, since_version=2)
    sooner = Candidate(key="a", reason=Reason.ORPHAN_SPLIT, size=8, first_seen_ms=10, since_version=1)
    written = documents.encode_gc_plan([later, sooner], counter=3, nonce="n")
    assert written == (
        b'{"format":1,"counter":3,"nonce":"n","candidates":['
        b'{"key":"a","reason":"orphan_split","size":8,"firstSeenMs":10,"sinceVersion":1},'
        b'{"key":"b","reason":"old_state","size":9,"firstSeenMs":20,"sinceVersion":2}]}'
    )
    assert documents.decode_gc_plan(written) == documents.Plan(
        candidates={"a": sooner, "b": later}, counter=3, etag=None
    )


def test_the_boundary_of_the_collector_has_the_golden_bytes_and_reads_back() -> None:
    written = encode_boundary(12, nonce="n")
    assert written == b'{"firstVersion":12,"nonce":"n"}'
    assert decode_boundary(written) == 12


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (CheckpointKind.AVRO_STATE, b'"avro-state","nonce":"n","stateDir":"state-v00000000000000000005"}'),
        (CheckpointKind.JSON, b'"json","nonce":"n"}'),
        (CheckpointKind.JSON_MULTIPART, b'"json-multipart","nonce":"n"}'),
    ],
)
def test_a_hint_has_the_golden_bytes_and_reads_back(kind: CheckpointKind, end: bytes) -> None:
    given = CheckpointHint(version=5, kind=kind, actions=4, size_bytes=3, files=2, created_at_ms=1)
    written = documents.encode_hint(given, nonce="n")
    assert written == b'{"version":5,"size":4,"sizeInBytes":3,"numFiles":2,"createdTime":1,"format":' + end
    assert documents.decode_hint(written) == (5, kind)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"version":true}', b'{"version":-1}', b'{"version":1,"format":"x"}', b"{}"]
)
def test_what_is_no_hint_is_none(body: bytes) -> None:
    assert documents.decode_hint(body) is None
    assert documents.decode_hint(b'{"version":1}') == (1, CheckpointKind.JSON)


def test_a_lease_has_the_golden_bytes_and_reads_back() -> None:
    given = LeaseRecord(
        resource="merge", holder="run-1", fencing_token=2, acquired_at_ms=10, expires_at_ms=20, nonce="u.1"
    )
    written = documents.encode_lease(given)
    assert written == (
        b'{"format":1,"resource":"merge","holder":"run-1","fencing_token":2,"acquired_at":10,"expires_at":20,'
        b'"nonce":"u.1"}'
    )
    assert documents.decode_lease(written, lock_key("merge")) == given


@pytest.mark.parametrize("value", [True, 1.0, "1", -1, 2**63, None])
def test_a_field_that_is_no_number_of_ours_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a number from 0 to"):
        number(value)
    assert (number(0), number(2**63 - 1)) == (0, 2**63 - 1)


def test_a_field_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="3 is not a text"):
        text(3)
    assert text("a") == "a"
