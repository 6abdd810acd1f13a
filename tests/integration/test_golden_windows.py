"""Tables with changed windows, written by early 0.1 releases, still return the same answers."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.golden_windows import answers

FOLDER = Path(__file__).parents[1] / "golden" / "windows"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.zip")))
def test_an_old_table_of_several_durations_answers_as_it_did(name: str) -> None:
    expected: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    store = MemoryStore(name)
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        for key in archive.namelist():
            store.put(key, archive.read(key), Overwrite())
    assert json.loads(json.dumps(answers(store))) == expected
    assert expected["done"] == [False, [0, 3600, 4500], [[0, 3600]]]
    assert expected["rows"] == list(range(0, 90, 5))
