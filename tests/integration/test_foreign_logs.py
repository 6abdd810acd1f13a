"""`tidemark describe` and `tidemark files` on logs that Tidemark did not write: each dialect of design page 09."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from storage_core.errors import Unsupported
from storage_core.formats.keys import version_key
from storage_core.log.log import TransactionLog
from storage_core.objectstore.contract import IfAbsent
from storage_core.objectstore.local import LocalStore
from storage_core.testkit.foreign_logs import put_hint, put_state
from storage_core.testkit.log_tables import split

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
    """Version 0 is the only version file; the hint is stale; the state holds metadata and a registry apart."""
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


def test_a_log_of_others_is_not_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "table")
    DIALECTS["gzip"](store)
    log = TransactionLog(store)
    with pytest.raises(Unsupported, match="can be read, not written"):
        log.commit(log.snapshot(), [split("x")], operation="APPEND")
