"""Write a golden table with changed windows, only once: python -m tests.golden.make_golden_windows NAME

The program writes the files once and never rewrites them (`tests/integration/test_golden_windows.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path

from storage_core.log.log import TransactionLog
from storage_core.store.memory import MemoryStore
from tests.golden.make_golden import FOLDER, LONG_AGO
from tests.support.clock import ManualClock
from tests.support.golden_windows import answers, windows_table
from tests.support.ids import SeededIds

WINDOWS = FOLDER / "windows"


def main(name: str) -> None:
    """Write `NAME.zip` with the objects by key, and `NAME.json` with the answers of a reader."""
    target = WINDOWS / f"{name}.zip"
    if target.exists():
        raise SystemExit(f"{target} exists, and golden files are never written again; choose another name")
    store = MemoryStore("windows")
    with tempfile.TemporaryDirectory() as folder:
        log = TransactionLog(store, clock=ManualClock(), ids=SeededIds(5))
        windows_table(log, Path(folder), packed="packed" in name)
    WINDOWS.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for info in sorted(store.list(""), key=lambda each: each.key):
            archive.writestr(zipfile.ZipInfo(info.key, LONG_AGO), store.get(info.key).data)
    (WINDOWS / f"{name}.json").write_text(json.dumps(answers(store), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
