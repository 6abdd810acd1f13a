"""Tables with vector indexes that early 0.1 wrote give the same answers, and searches use their segments."""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest

from storage_core.maintain.check import fsck
from storage_core.read.search.plan import covered
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.every_kind import open_copy
from tests.support.golden_vectors import INDEXES, answers

FOLDER = Path(__file__).parents[1] / "golden" / "vectors"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.zip")))
def test_an_old_table_of_vectors_answers_as_it_did(name: str, caplog: pytest.LogCaptureFixture) -> None:
    expected: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    clock = ManualClock()
    clock.now = expected["now_ms"]
    store = MemoryStore(name, clock=clock)
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        for key in archive.namelist():
            store.put(key, archive.read(key), Overwrite())
    with caplog.at_level(logging.WARNING):
        found = json.loads(json.dumps(answers(store, clock, expected["queries"])))
    assert found == expected["answers"]
    assert not caplog.records, "every segment is used"
    snapshot = open_copy(store, clock).snapshot
    for index in INDEXES:
        assert covered(snapshot, index=index.name)["scanned"] == []
    assert fsck(store, clock=clock, deep=True).clean
