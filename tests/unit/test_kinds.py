"""Every stored object has exactly one kind, and real tables and raw logs store every kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats import keys
from storage_core.data.formats.avro_state import decode_entries, decode_state
from storage_core.data.formats.kinds import (
    KINDS,
    OF_TABLES,
    Keeper,
    KeyKind,
    ObjectKind,
    Reason,
    Rows,
    document_of,
    with_rows,
)
from storage_core.log.checkpoint import key_of_manifest
from storage_core.log.codec import decode_version
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.changed_rows import created, row
from tests.support.every_kind import FOREIGN, every_kind, open_copy, partitioned, published
from tests.support.fault_store import FaultStore
from tests.support.golden_clones import made
from tests.support.raw_collection import collect, produce, raw_board

MAINTAIN = Path(__file__).resolve().parents[2] / "storage_core" / "maintain"
SPEC = Path(__file__).resolve().parents[2] / "docs" / "spec.md"


def shown_as_iceberg() -> ObjectStore:
    store = MemoryStore("iceberg")
    table = created(store)
    table.append([row(n, "h", hour=0) for n in range(3)])
    table.publish("iceberg")
    return store


def raw_log() -> ObjectStore:
    board = raw_board("raw")
    produce(board, 1, 2, 3, ids=True)
    board.distribute()
    collect(board)
    produce(board, 4, seed=2, ids=True)
    board.distribute()
    return board.stores[0]


@cache
def stores() -> Mapping[str, ObjectStore]:
    """Return tables and raw logs with every feature."""
    return {
        "every kind": every_kind().store,
        "partitioned": partitioned().store,
        "shown as Delta": published().store,
        "shown as Iceberg": shown_as_iceberg(),
        **made(),
        "raw log": raw_log(),
    }


def stored() -> Iterator[tuple[ObjectStore, str]]:
    for store in stores().values():
        yield from ((store, info.key) for info in store.list("") if info.key != FOREIGN)


def kinds_of(key: str) -> list[KeyKind]:
    return [each.kind for each in KINDS.values() if each.parts(key) is not None]


def test_every_stored_object_has_exactly_one_kind() -> None:
    assert [key for _, key in stored() if len(kinds_of(key)) != 1] == []


def test_every_kind_is_stored_somewhere() -> None:
    assert {kind for _, key in stored() for kind in kinds_of(key)} == set(KeyKind)


def test_every_kind_has_an_entry_and_every_builder_of_a_key_is_of_a_kind() -> None:
    assert KINDS.keys() == set(KeyKind)
    assert {name for name in vars(keys) if name.endswith("_key")} <= {f"{kind}_key" for kind in KeyKind}


def test_the_parts_of_a_key_are_fields_of_what_a_parser_returns() -> None:
    known = {each.name for each in fields(keys.ParsedKey)} | {"folder", "partition"}  # no fields of `ParsedKey`
    parts = {kind: set(re.findall(r"{(\w+):", KINDS[kind].template)) for kind in OF_TABLES}
    assert {kind: names - known for kind, names in parts.items() if names - known} == {}
    assert any(parts.values())


DOCUMENTS = [each for each in KINDS.values() if each.document is not None]


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda each: each.kind)
def test_the_entry_of_a_document_reads_its_stored_objects_and_refuses_damage(kind: ObjectKind) -> None:
    document = document_of(kind.kind)
    blobs = {key: store.get(key).data for store, key in stored() if kinds_of(key) == [kind.kind]}
    for key, data in blobs.items():
        document.decode(data, key, dict)
        with pytest.raises(Corrupt, match=re.escape(document.called)):
            document.decode(b"[" + data, key, dict)
        if not document.unnumbered and not document.has_checksum:
            newer = json.dumps({**json.loads(data), "format": document.format + 1}).encode()
            with pytest.raises(Unsupported, match=re.escape(document.called)):
                document.decode(newer, key, dict)
    assert blobs


def test_a_kind_that_is_no_document_has_no_codec_in_its_entry() -> None:
    with pytest.raises(LookupError, match="split"):
        document_of(KeyKind.SPLIT)


def test_a_kind_takes_an_entry_and_its_module() -> None:
    """Garbage collection always keeps some documents.

    The maintenance modules refer to every kind of document with information about rows, and to no other kind of
    document.
    """
    visitors = "".join(each.read_text(encoding="utf-8") for each in MAINTAIN.glob("*.py"))
    named = {each.kind for each in DOCUMENTS if f"KeyKind.{each.kind.name}" in visitors}
    assert named == {each.kind for each in DOCUMENTS if each.rows is not Rows.NONE}


def test_a_key_is_built_from_the_parts_that_it_is_parsed_into() -> None:
    for _, key in stored():
        (kind,) = kinds_of(key)
        parts = KINDS[kind].parts(key)
        assert parts is not None
        if "source" not in parts:  # the source stays in its encoded form
            parts["partition"] = str(parts.get("partition", "")).removesuffix("/")
            assert KINDS[kind].key(**parts) == key


def test_what_may_be_deleted_has_a_reason_and_only_that() -> None:
    for each in KINDS.values():
        assert (each.unneeded is None) is (each.keeper is Keeper.ALWAYS), each.kind
    reasons = {reason for each in KINDS.values() for reason in (each.unneeded, each.removed) if reason is not None}
    assert reasons == set(Reason) - {Reason.FORGOTTEN}, "which a person gives, for objects that are kept otherwise"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, nested in value.items():
            yield from (*_texts(name), *_texts(nested))
    elif isinstance(value, list | tuple):
        for nested in value:
            yield from _texts(nested)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _texts(getattr(value, each.name))


def _state(data: bytes, key: str) -> object:
    state = decode_state(data, key)
    return [state.actions, *(key_of_manifest(each.path, state.state_version) for each in state.manifests)]


def _checkpoint(data: bytes, key: str) -> object:
    return () if b'"checkpointId"' in data[:4096] else decode_version(data, key)


READERS: Mapping[KeyKind, Callable[[bytes, str], object]] = {
    KeyKind.VERSION: decode_version,
    KeyKind.STATE: _state,
    KeyKind.MANIFEST: lambda data, key: decode_entries(data, key).to_pylist(),
    KeyKind.JSON_CHECKPOINT: _checkpoint,
    KeyKind.JSON_CHECKPOINT_PART: decode_version,
}


@pytest.mark.parametrize("kind", READERS)
def test_an_object_of_the_log_refers_to_kinds_that_its_entry_names(kind: KeyKind) -> None:
    found = set[KeyKind]()
    for store, key in stored():
        if kinds_of(key) == [kind]:
            parsed = map(keys.parse, _texts(READERS[kind](store.get(key).data, key)))
            found |= {each.kind for each in parsed if each is not None}
    # For segments over generations, the log contains the generation.
    assert found - {KeyKind.GENERATION_FILE} <= KINDS[kind].refers_to


def test_a_report_of_what_is_forgotten_reads_every_kind_with_values_of_rows() -> None:
    found = partitioned()
    read = set[str]()
    store = FaultStore(found.store, watch=lambda kind, key: read.add(key) if kind.startswith("get") else None)
    open_copy(store, found.clock).forget_report("text = 'new'")
    kinds = {kind for key in read for kind in kinds_of(key)}
    assert with_rows(Rows.WHOLE, Rows.VALUES) - kinds <= {KeyKind.SEGMENT, *_of_mirrors()}, (
        "a segment is told by splits"
    )


def _of_mirrors() -> set[KeyKind]:
    return {each for each in KeyKind if each.startswith(("delta", "iceberg"))}


SPELLED = {
    "version": "<v20>",
    "delta": "<v20>",
    "iceberg": "<version>",
    "metadata": "<n>",
    "part": "<p5>",
    "generation": "<hex8>_gen_<n>",
    "file": "<name>",
    "checkpoint": "<uuid>",
    "partition": "[<name>=<value>/…]",
}


def _as_specified(template: str) -> str:
    """Return the template in the notation of the specification."""
    return re.sub(
        r"\{(\w+):(\w+)\}",
        lambda found: SPELLED.get(found[2], f"<{found[1 if found[1] == 'region' else 2]}>"),
        template,
    )


def test_the_specification_lists_the_key_of_every_kind_of_a_table() -> None:
    table = (
        SPEC.read_text(encoding="utf-8").partition("| Kind | Key | Object |\n|---|---|---|\n")[2].partition("\n\n")[0]
    )
    listed = [re.findall(r"`([^`]+)`", line)[0] for line in table.splitlines()]
    assert sorted(listed) == sorted(_as_specified(KINDS[kind].template) for kind in OF_TABLES)
