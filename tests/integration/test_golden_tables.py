"""Exact copies of tables from early 0.1 releases can still be opened and return the same answers."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from storage_core.data.formats import avro_state, region_manifest
from storage_core.data.formats.key_hashes import key_hashes
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import OF_TABLES, KeyKind
from storage_core.data.settings.layout import BY_HAND_SPEC
from storage_core.index.segment_reader import KeyReading, index_of
from storage_core.log.codec import decode_version, encode_version
from storage_core.log.log import TransactionLog
from storage_core.split.read import read_split
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.pieces import NOTHING
from storage_core.write.region import wal
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.spec import hand_region, list_regions, read_registry
from tests.support.clock import ManualClock
from tests.support.every_kind import answers

FOLDER = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in FOLDER.glob("*.zip"))


def _objects(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        return {key: archive.read(key) for key in archive.namelist()}


def _same_state(data: bytes, key: str) -> bytes:
    return avro_state.encode_state(avro_state.decode_state(data, key))


REENCODED: Mapping[KeyKind, Callable[[bytes, str], bytes]] = {
    KeyKind.VERSION: lambda data, key: encode_version(decode_version(data, key)),
    KeyKind.STATE: _same_state,
    KeyKind.REGION_MANIFEST: lambda data, key: region_manifest.encode_region(region_manifest.decode_region(data, key)),
}


def test_there_is_a_golden_table_and_it_holds_every_kind_of_object() -> None:
    assert NAMES
    kinds = {parsed.kind for key in _objects(NAMES[-1]) if (parsed := parse(key))}
    of_iceberg = {each for each in KeyKind if each.startswith("iceberg")}
    assert kinds == set(OF_TABLES) - {KeyKind.SOURCE} - of_iceberg, "which are in test_golden_clones and _iceberg"


@pytest.mark.parametrize("name", NAMES)
def test_an_old_table_opens_and_answers_as_it_did(name: str) -> None:
    expected: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    clock = ManualClock()
    clock.now = expected["now_ms"]
    store = MemoryStore(name, clock=clock)
    for key, data in _objects(name).items():
        store.put(key, data, Overwrite())
    found = json.loads(json.dumps(answers(store, clock, expected["older"])))
    # The golden table contains no expected answers of newer queries. These queries must still return an answer, because
    # `json.dumps` cannot encode an error. The recorded answers of a golden table cover only the queries that existed
    # when the table was written.
    assert {question: found[question] for question in expected["answers"]} == expected["answers"]


def test_the_newest_golden_table_has_an_index_of_its_key_that_tells_where_rows_are() -> None:
    store = MemoryStore("golden", clock=ManualClock())
    for key, data in _objects(NAMES[-1]).items():
        store.put(key, data, Overwrite())
    head = TransactionLog(store).snapshot()
    index = index_of(head)
    assert index is not None
    told = 0
    for add in head.splits.values():
        answering = index[1](add)
        keys = read_split(store, add.as_written, ["id"])
        for row in range(0, keys.num_rows if answering else 0, 7):
            wanted = key_hashes(keys.slice(row, 1), ["id"])
            places = None if answering is None else KeyReading(store, add, answering, NOTHING).places(wanted)
            assert places is None or places.tolist() == [row]
            told += places is not None
    assert told


def test_a_golden_table_has_regions_made_by_hand_one_of_them_merged_and_one_not() -> None:
    store = MemoryStore("golden", clock=ManualClock())
    for key, data in _objects("format-2-regions-by-hand").items():
        store.put(key, data, Overwrite())
    head = TransactionLog(store).snapshot()
    assert head.config.regions_by_hand
    found = {each.values: (each.current_generation, each.merged_generation) for each in list_regions(store, head)}
    assert found["merged",] == (2, 1)
    assert found["import-2026",] == (2, 0)
    waiting = read_latest(store, hand_region(head.table_id, "import-2026").id)
    assert waiting is not None
    logged = wal.read_tail(store, waiting.region_id, after=waiting.replay_after_wal_id)
    assert sum(each.entry.records.num_rows for each in logged) == 2
    assert read_registry(store).of_spec(BY_HAND_SPEC) == sorted(
        (hand_region(head.table_id, name) for name in ("merged", "import-2026")), key=lambda each: each.id
    )


@pytest.mark.parametrize("kind", REENCODED)
def test_what_this_release_writes_is_what_the_newest_golden_table_holds(kind: KeyKind) -> None:
    objects = {key: data for key, data in _objects(NAMES[-1]).items() if (parsed := parse(key)) and parsed.kind is kind}
    assert objects
    for key, data in objects.items():
        assert REENCODED[kind](data, key) == data, key
