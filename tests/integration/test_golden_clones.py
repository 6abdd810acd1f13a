"""Shallow and deep clones made by early 0.1 still give the same answers."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from storage_core.data.formats.keys import source_key
from storage_core.log.sharing import decode_source, encode_source
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.golden_clones import NAMES, answers

FOLDER = Path(__file__).parents[1] / "golden" / "clones"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.zip")))
def test_old_clones_answer_as_they_did(name: str) -> None:
    expected: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    stores = {each: MemoryStore(f"golden/{each}") for each in NAMES}
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        for path in archive.namelist():
            folder, _, key = path.partition("/")
            stores[folder].put(key, archive.read(path), Overwrite())
    pointer = stores["shallow"].get(source_key()).data
    assert encode_source(decode_source(pointer)) == pointer
    assert json.loads(json.dumps(answers(stores))) == expected
    cloned = [n for n in range(80) if n % 10 != 4]
    assert [expected[each]["at_0"] for each in NAMES] == [[], cloned, cloned]
    assert expected["shallow"]["rows"] == [*(n for n in cloned if n != 7), 101]
    assert "sharedObjects" in expected["shallow"]["features"]
    assert "sharedObjects" not in expected["deep"]["features"]
