"""`tidemark describe` and `tidemark files` on logs that other systems wrote, for each dialect in use."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from storage_core.base.errors import Unsupported
from storage_core.data.formats.keys import json_checkpoint_key, last_checkpoint_key, version_key
from storage_core.log.log import TransactionLog
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.local import LocalStore
from tests.support.foreign_logs import put_hint, put_state
from tests.support.log_tables import split

SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "title", "type": "string", "nullable": True, "metadata": {}}]}
)
METADATA = {
    "id": "550e8400-e29b-41d4-a716-446655440000",
    "format": {"provider": "indextables", "options": {}},
    "schemaString": SCHEMA,
    "partitionColumns": ["date"],
    "configuration": {"docMappingSchema.QyWM_3g_5wNtikMD": '{"a":1,"b":2}'},
    "createdTime": 1_704_067_200_000,
}
PROTOCOL = {"minReaderVersion": 4, "minWriterVersion": 4, "readerFeatures": None, "writerFeatures": None}
LIVE = ["date=2024-01-01/splits/b.split", "date=2024-01-01/splits/c.split"]


def _add(path: str) -> dict[str, Any]:
    body = {
        "path": path,
        "partitionValues": {"date": "2024-01-01"},
        "size": 10,
        "modificationTime": 7,
        "dataChange": True,
    }
    return {"add": body | {"minValues": {"title": "a"}, "maxValues": {"title": "b"}, "numRecords": 5, "unknown": [1]}}


VERSIONS: list[list[dict[str, Any]]] = [
    [{"protocol": PROTOCOL}, {"metaData": METADATA}],
    [_add("date=2024-01-01/splits/a.split"), _add(LIVE[0])],
    [{"remove": {"path": "date=2024-01-01/splits/a.split", "deletionTimestamp": 9, "dataChange": True}}, _add(LIVE[1])],
]


def _plain(text: str) -> bytes:
    return text.encode()


def _gzip(text: str) -> bytes:
    return gzip.compress(text.encode())


def _prefixed_gzip(text: str) -> bytes:
    return b"\x01\x01" + gzip.compress(text.encode())


def _versions(store: LocalStore, encode: Callable[[str], bytes], count: int = 3) -> None:
    for version, actions in enumerate(VERSIONS[:count]):
        text = "".join(json.dumps(action) + "\n" for action in actions)
        store.put(version_key(version), encode(text), IfAbsent())


def _states_are_commits(store: LocalStore) -> None:
    """Write a log whose only version file is version 0 and whose hint is stale.

    The state has metadata, and a schema registry as a separate field.
    """
    _versions(store, _plain, 1)
    put_state(store, 1, [LIVE[0]], manifest="manifests/manifest-1.avro")
    put_state(
        store, 2, LIVE, manifest="manifest-001.avro", metadata=json.dumps({"metaData": METADATA}),
        schemaRegistry={"QyWM_3g_5wNtikMD": '{"a":1,"b":2}'},
    )  # fmt: skip
    put_hint(store, 1)


DIALECTS: dict[str, Callable[[LocalStore], None]] = {
    "plain text": lambda store: _versions(store, _plain),
    "gzip": lambda store: _versions(store, _gzip),
    "gzip behind 01 01": lambda store: _versions(store, _prefixed_gzip),
    "states as commits": _states_are_commits,
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_log_of_others_is_described_and_its_files_are_listed(
    dialect: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "table"
    DIALECTS[dialect](LocalStore(root))
    before = sorted(path for path in root.rglob("*"))
    assert main(("describe", str(root), "--json")) == 0
    described = json.loads(capfd.readouterr().out)
    assert (described["version"], described["live_splits"], described["table_id"]) == (2, 2, METADATA["id"])
    assert main(("files", str(root), "--json")) == 0
    files = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["path"] for each in files] == LIVE
    assert main(("describe", str(root))) == 0
    assert sorted(path for path in root.rglob("*")) == before, "reading writes nothing"


@pytest.mark.parametrize("deep", [(), ("--deep",)], ids=["by size", "deep"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_sound_log_of_others_is_clean_and_a_lost_file_of_it_is_named(
    dialect: str, deep: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some file names are not hashes. A state file can also be a commit. No finding suggests moving a live file."""
    store = LocalStore(tmp_path / "table")
    DIALECTS[dialect](store)
    sizes = {path: add.size for path, add in TransactionLog(store).snapshot().splits.items()}
    for path, size in sizes.items():
        store.put(path, b"x" * size, IfAbsent())
    assert main(("fsck", store.uri, "--json", *deep)) == 0
    (summary,) = capfd.readouterr().out.splitlines()
    assert json.loads(summary)["summary"].items() >= {"status": "clean", "version": 2, "notes": 0}.items()
    store.delete([LIVE[0]])
    assert main(("fsck", store.uri, "--json", *deep)) == 4
    finding, _ = map(json.loads, capfd.readouterr().out.splitlines())
    assert (finding["kind"], finding["key"]) == ("split_missing", LIVE[0])


def test_a_log_of_others_that_does_not_open_is_named_with_what_is_damaged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = LocalStore(tmp_path / "table")
    DIALECTS["gzip"](store)
    store.put(version_key(1), b"\x1f\x8bno", Overwrite())
    assert main(("fsck", store.uri, "--json")) == 4
    *findings, _ = map(json.loads, capfd.readouterr().out.splitlines())
    assert [each["kind"] for each in findings] == ["version_damaged", "table_unreadable"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "command",
    [("checkpoint",), ("tag", "mine"), ("restore", "--to", "0"), ("gc",), ("compact", "--all")],
    ids=lambda command: command[0],
)
def test_no_command_writes_into_a_log_of_others(
    command: tuple[str, ...], dialect: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "table"
    DIALECTS[dialect](LocalStore(root))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    name, *rest = command
    assert main((name, str(root), *rest)) in (0, 2)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before
    assert "Traceback" not in capfd.readouterr().err


def test_a_commit_to_a_log_of_others_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "table")
    DIALECTS["gzip"](store)
    log = TransactionLog(store)
    with pytest.raises(Unsupported, match="so it is read-only"):
        log.commit(log.snapshot(), [split("x")], operation="APPEND")


def test_an_old_json_checkpoint_hides_no_commit_that_is_a_state(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "table")
    _states_are_commits(store)
    text = "".join(json.dumps(action) + "\n" for action in VERSIONS[0])
    store.put(json_checkpoint_key(0), text.encode(), IfAbsent())
    store.put(last_checkpoint_key(), b'{"version":0,"size":2}', Overwrite())
    found = TransactionLog(store).snapshot()
    assert (found.version, sorted(found.splits)) == (2, LIVE)
