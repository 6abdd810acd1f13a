"""Write the golden Iceberg mirror, once: python -m tests.golden.make_golden_iceberg NAME

The program writes the files once and never rewrites them (`tests/integration/test_golden_iceberg.py`).
"""

from __future__ import annotations

import sys
import zipfile

from storage_core.store.memory import MemoryStore
from tests.golden.make_golden import FOLDER, LONG_AGO
from tests.support import upkeep
from tests.support.changed_rows import created, opened, row

MIRRORS = FOLDER / "mirrors"
NAME = "golden"
"""The URI of the store. The locations in the mirror begin with this URI."""


def main(name: str) -> None:
    """Write `NAME.zip` with the objects of the table by key. The mirror shows versions 1, 2, 4 and 5."""
    target = MIRRORS / f"{name}.zip"
    if target.exists():
        raise SystemExit(f"{target} exists, and golden files are never written again; choose another name")
    store = MemoryStore(NAME)
    table = created(store)
    for first in (0, 20):
        table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(first, first + 20)])
        table.publish("iceberg")
    table.delete("n % 7 = 3")
    upkeep.compact(table.refresh())
    table.add_column("note", "string")
    opened(store, 3).publish("iceberg")
    MIRRORS.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for info in sorted(store.list(""), key=lambda each: each.key):
            archive.writestr(zipfile.ZipInfo(info.key, LONG_AGO), store.get(info.key).data)


if __name__ == "__main__":
    main(sys.argv[1])
