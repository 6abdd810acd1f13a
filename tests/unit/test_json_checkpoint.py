"""Old JSON checkpoints of Tidemark and other programs open correctly. Damaged JSON checkpoints lose no data."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Literal

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt
from storage_core.data.formats.keys import json_checkpoint_key, last_checkpoint_key, parse, state_key, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import CheckpointFormat, TableConfig
from storage_core.log import checkpoint
from storage_core.log.actions import Action, Fence, MergedGenerations, Protocol, Txn
from storage_core.log.checkpoint import manifest_keys, part_keys, read_state, write_json_checkpoint
from storage_core.log.codec import encode_line, encode_version
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect
from storage_core.store.contract import IfAbsent, ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore
from tests.support.log_tables import INDEX, log_on, metadata, removal, segment, split
from tests.support.meanwhile import Meanwhile

Form = Literal["json", "json-multipart"]
FORMS: tuple[Form, ...] = ("json", "json-multipart")


def _table(form: Form) -> tuple[MemoryStore, Snapshot]:
    """Return a table of four versions with a JSON checkpoint of the third and no version files before it."""
    store = MemoryStore("t")
    log = log_on(store)
    head = log.create(metadata(TableConfig(checkpoint_interval=0, checkpoint_format=form, indexes=(INDEX,))))
    head = log.commit(head, [split("a"), split("b"), segment("s", "a")], operation="X").snapshot
    progress: list[Action] = [
        Txn(appId="job", version=4),
        Fence(resource="r", token=2),
        MergedGenerations(region="g", generation=1),
    ]
    head = log.commit(head, [removal("b"), split("c", rows=3), *progress], operation="X").snapshot
    log.checkpoint(head)
    head = log.commit(head, [split("d")], operation="X").snapshot
    store.delete([version_key(0), version_key(1), version_key(2)])
    return store, head


@pytest.mark.parametrize("form", FORMS)
def test_a_table_opens_from_its_json_checkpoint_as_it_was(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "ACTIONS_PER_PART", 2)
    store, head = _table(form)
    hint = json.loads(store.get(last_checkpoint_key()).data)
    assert (hint["format"], hint["version"]) == (form, 2)
    for _ in ("with the hint", "without it"):
        found = log_on(store).snapshot()
        assert found == head
        assert found.checkpoint_version == 2
        assert found.splits.added_at(split("a").path) == head.splits.added_at(split("a").path)
        store.delete([last_checkpoint_key()])


@pytest.mark.parametrize(("form", "objects"), [("json", 1), ("json-multipart", 3)])
def test_a_checkpoint_in_parts_is_its_parts_and_their_list(
    form: Form, objects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "ACTIONS_PER_PART", 5)
    store, _ = _table(form)
    kinds = [parsed.kind for info in store.list("") if (parsed := parse(info.key))]
    written = [kind for kind in kinds if kind in (KeyKind.JSON_CHECKPOINT, KeyKind.JSON_CHECKPOINT_PART)]
    assert len(written) == objects
    metered = MeteredStore(store)
    log_on(metered).snapshot()
    # The hint, the checkpoint, version 3, and the probe that finds no version 4.
    assert metered.requests["get"] == 3 + objects
    assert metered.requests["list"] == 1, "of what lies beyond the head"


@pytest.mark.parametrize("form", FORMS)
def test_a_json_checkpoint_is_idempotent_and_follows_from_its_version(form: Form) -> None:
    store, _ = _table(form)
    before = {info.key: info.etag for info in store.list("")}
    log = log_on(store)
    assert not log.checkpoint(log.snapshot(version=2)).written
    assert {info.key: info.etag for info in store.list("")} == before


def test_a_part_that_is_lost_or_damaged_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "ACTIONS_PER_PART", 5)
    store, _ = _table("json-multipart")
    listed = json.loads(store.get(json_checkpoint_key(2)).data)["parts"]
    key = "_transaction_log/" + listed[1]
    for damage in (lambda: store.put(key, b"torn", Overwrite()), lambda: store.delete([key])):
        damage()
        with pytest.raises(Corrupt, match=r"checkpoint|neither version 0 nor an intact state"):
            log_on(store).snapshot()
        with pytest.raises(Corrupt, match=key):
            checkpoint.load_json_checkpoint(store, 2)


@pytest.mark.parametrize("named", ["../../etc/passwd", "00000000000000000001.json", "manifests/manifest-a.avro", 7])
def test_a_list_of_parts_that_names_anything_else_is_refused(named: object) -> None:
    store, _ = _table("json-multipart")
    body = {"version": 2, "checkpointId": "x", "parts": [named], "createdTime": 0}
    store.put(json_checkpoint_key(2), json.dumps(body).encode(), Overwrite())
    with pytest.raises(Corrupt, match="part"):
        checkpoint.load_json_checkpoint(store, 2)


@pytest.mark.parametrize("hint", [{"version": 5}, {"version": 5, "format": "json"}, None])
def test_a_json_checkpoint_of_others_has_no_commit_information(hint: dict[str, object] | None) -> None:
    store = MemoryStore("foreign")
    plain = "".join(encode_line(each) + "\n" for each in (Protocol(), metadata(), split("a"), split("b", rows=2)))
    store.put(json_checkpoint_key(5), plain.encode(), IfAbsent())
    store.put(version_key(6), encode_version([split("c")]), IfAbsent())
    if hint is not None:
        store.put(last_checkpoint_key(), json.dumps(hint).encode(), IfAbsent())
    found = log_on(store).snapshot()
    assert (found.version, found.checkpoint_version) == (6, 5)
    assert set(found.splits) == {split(name).path for name in "abc"}
    assert found.splits.added_at(split("a").path)[0] == 5


def test_old_json_checkpoints_and_their_parts_are_collected_and_the_newest_two_stay() -> None:
    clock = ManualClock()
    store = MemoryStore("t", clock=clock)
    log = log_on(store, clock=clock)
    config = TableConfig(
        checkpoint_interval=1, checkpoint_format="json-multipart", version_retention_ms=0, gc_horizon_ms=0
    )
    log.create(metadata(config))
    for number in range(5):
        log.commit(log.snapshot(), [split(f"n{number}")], operation="X")
        clock.now += 1000
    for _ in range(4):
        collect(store, log, clock=clock, horizon_ms=0)
        clock.now += 1000
    found = [parsed for info in store.list("") if (parsed := parse(info.key))]
    assert {each.version for each in found if each.kind is KeyKind.JSON_CHECKPOINT} == {4, 5}
    assert {each.version for each in found if each.kind is KeyKind.JSON_CHECKPOINT_PART} == {4, 5}
    assert len(log.snapshot().splits) == 5


@pytest.mark.parametrize("damage", [b"junk", None], ids=["damaged", "gone"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_damaged_manifest_hides_no_json_checkpoint_of_the_same_version(
    damage: bytes | None, *, in_parts: bool
) -> None:
    store = MemoryStore("t")
    log = log_on(store)
    head = log.create(metadata(_brief("avro")))
    for number in range(3):
        head = log.commit(head, [split(f"n{number}")], operation="X").snapshot
    head = log.checkpoint(head).snapshot
    write_json_checkpoint(store, head, in_parts=in_parts)
    (manifest,) = manifest_keys(read_state(store, head.version))
    store.delete([*map(version_key, range(head.version + 1)), manifest])
    if damage is not None:
        store.put(manifest, damage, Overwrite())
    for hinted in (True, False):
        found = log_on(store).snapshot()
        assert (found.version, set(found.splits)) == (head.version, set(head.splits))
        if hinted:
            store.delete([last_checkpoint_key()])


def test_a_new_state_names_no_manifest_that_only_a_snapshot_in_memory_still_knows() -> None:
    """The table still has JSON checkpoints after its Avro state was removed.

    In each try, the manifests of the Avro state are removed before another request of the process that writes the next
    state.
    """
    for instant in count():
        clock = ManualClock()
        store = MemoryStore("t", clock=clock)
        log = log_on(store, clock=clock)
        head = log.create(metadata(_brief("avro")))
        head = log.commit(head, [split(f"a{number:03}") for number in range(40)], operation="X").snapshot
        state = log.checkpoint(head).version
        manifests = manifest_keys(read_state(store, state))
        head = log.commit(log.snapshot(), [metadata(_brief("json"))], operation="X").snapshot
        for number in range(3):
            head = log.checkpoint(log.commit(head, [split(f"b{number}")], operation="X").snapshot).snapshot
        head = log.commit(head, [metadata(_brief("avro"))], operation="X").snapshot
        while state_key(state) in _keys(store):
            collect(store, log, clock=clock)
            clock.now += 2 * HOUR_MS
        collect(store, log, clock=clock)
        assert set(manifests) <= _keys(store), "nobody needs them any more, and the next collection takes them"
        clock.now += 2 * HOUR_MS
        meanwhile = Meanwhile(instant, partial(collect, store, log, clock=clock))
        log_on(FaultStore(store, watch=meanwhile), clock=clock).checkpoint(head)
        assert set(manifest_keys(read_state(store, head.version))) <= _keys(store)
        assert len(log.snapshot().splits.values()) == 43
        if not meanwhile.acted:
            break
        assert not set(manifests) & _keys(store)


def _brief(form: CheckpointFormat) -> TableConfig:
    return TableConfig(
        checkpoint_interval=0, checkpoint_format=form, version_retention_ms=0, gc_horizon_ms=HOUR_MS, indexes=(INDEX,)
    )


def _keys(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def _two_checkpoints(form: Form) -> tuple[MemoryStore, Snapshot]:
    """Make a table with JSON checkpoints of versions 2 and 4, and with every version file."""
    store = MemoryStore("two")
    log = log_on(store)
    head = log.create(metadata(TableConfig(checkpoint_interval=2, checkpoint_format=form)))
    for name in "abcd":
        head = log.commit(head, [split(name), split(f"{name}{name}")], operation="X").snapshot
    return store, head


def _root(store: ObjectStore, version: int) -> bytes:
    return store.get(json_checkpoint_key(version)).data


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hinted", [True, False])
def test_a_checkpoint_in_the_place_of_another_one_is_not_answered_from(
    form: Form, hinted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "ACTIONS_PER_PART", 3)
    for there, instead in ((4, 2), (2, 4)):
        store, head = _two_checkpoints(form)
        store.put(json_checkpoint_key(there), _root(store, instead), Overwrite())
        if not hinted:
            store.delete([last_checkpoint_key()])
        assert log_on(store).snapshot() == head
        assert log_on(store).snapshot(version=3).version == 3
        with pytest.raises(Corrupt, match=f"{there:020}"):
            checkpoint.load_json_checkpoint(store, there)


def test_a_version_file_in_the_place_of_a_checkpoint_is_not_answered_from() -> None:
    store, head = _two_checkpoints("json")
    store.put(json_checkpoint_key(4), store.get(version_key(4)).data, Overwrite())
    assert log_on(store).snapshot() == head


def test_a_part_in_the_place_of_another_one_is_not_answered_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "ACTIONS_PER_PART", 4)
    store, head = _two_checkpoints("json-multipart")
    own, older = (part_keys(_root(store, version), json_checkpoint_key(version)) or () for version in (4, 2))
    store.put(own[0], store.get(older[0]).data, Overwrite())
    assert log_on(store).snapshot() == head


def test_every_flipped_bit_of_a_list_of_parts_is_noticed_but_in_the_name_of_its_checksum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "ACTIONS_PER_PART", 4)
    store, head = _two_checkpoints("json-multipart")
    root = _root(store, 4)
    checksum = range(root.index(b"xxh3") * 8, root.index(b"xxh3") * 8 + 32)
    for bit in range(len(root) * 8):
        flipped = bytearray(root)
        flipped[bit // 8] ^= 1 << bit % 8
        store.put(json_checkpoint_key(4), bytes(flipped), Overwrite())
        if bit in checksum:  # like a list without a checksum
            with suppress(Corrupt):
                assert checkpoint.load_json_checkpoint(store, 4) == head
            continue
        with pytest.raises(Corrupt):
            checkpoint.load_json_checkpoint(store, 4)


@pytest.mark.parametrize("names", [[1, 1], [2, 1], [2]], ids=["doubled", "out of order", "not from the first"])
def test_a_list_without_a_checksum_still_has_to_name_all_parts_in_order(names: list[int]) -> None:
    which = "0" * 8 + "-0000-4000-8000-" + "0" * 12
    listed = [f"{4:020}.checkpoint.{which}.{number:05}.json" for number in names]
    root = json.dumps({"version": 4, "checkpointId": which, "parts": listed}).encode()
    with pytest.raises(Corrupt, match="is not part"):
        part_keys(root, json_checkpoint_key(4))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("which", ["0a1b2c3d4e5f", "0" * 8 + "-0000-4000-8000-" + "0" * 12], ids=["hex", "uuid"])
@pytest.mark.parametrize("seen", ["hinted", "listed"])
def test_a_checkpoint_in_parts_of_others_opens(which: str, seen: str, *, packed: bool) -> None:
    store = MemoryStore("foreign parts")
    parts: list[list[Action]] = [[Protocol(), metadata()], [split("a"), split("b", rows=2)]]
    names = [f"{5:020}.checkpoint.{which}.{number:05}.json" for number in (1, 2)]
    for name, actions in zip(names, parts, strict=True):
        store.put(f"_transaction_log/{name}", encode_version(actions), IfAbsent())
    root = json.dumps(
        {"version": 5, "checkpointId": which, "parts": names, "createdTime": 0, "format": "json"}
    ).encode()
    store.put(json_checkpoint_key(5), gzip.compress(root) if packed else root, IfAbsent())
    store.put(version_key(6), encode_version([split("c")]), IfAbsent())
    if seen == "hinted":
        hint = {"version": 5, "size": 4, "parts": 2, "format": "json"}
        store.put(last_checkpoint_key(), json.dumps(hint).encode(), IfAbsent())
    found = log_on(store).snapshot()
    assert (found.version, found.checkpoint_version) == (6, 5)
    assert set(found.splits) == {split(name).path for name in "abc"}
    assert part_keys(store.get(json_checkpoint_key(5)).data, json_checkpoint_key(5)) == tuple(
        f"_transaction_log/{name}" for name in names
    )


@pytest.mark.parametrize("which", ["0a1b2c3d4e5", "0a1b2c3d4e5f0", "0A1B2C3D4E5F", "0a1b2c3d4e5g", "../0a1b2c3d4e"])
def test_an_id_of_parts_that_is_neither_a_uuid_nor_twelve_hex_digits_is_refused(which: str) -> None:
    name = f"{5:020}.checkpoint.{which}.00001.json"
    root = json.dumps({"version": 5, "checkpointId": which, "parts": [name]}).encode()
    with pytest.raises(Corrupt, match="is not a part of a checkpoint"):
        part_keys(root, json_checkpoint_key(5))


def test_a_list_of_parts_that_unpacks_beyond_its_bound_is_no_list() -> None:
    bomb = gzip.compress(b'{"checkpointId":"' + b"a" * 2**25)
    assert len(bomb) < 2**16
    tracemalloc.start()
    assert part_keys(bomb, json_checkpoint_key(5)) is None
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()
