"""Write the golden table of the present formats, once: python -m tests.golden.make_golden NAME [KIND]

The KIND chooses the table:

- `columns`: a table whose columns changed.
- `partitions`: a partitioned table.
- `regions`: a table with manual regions.
- `mirror`: a table that is published as Delta.

A golden file is the output of one release, and is never rewritten. A new format gets a new name. Later releases must
open the old file (`tests/integration/test_golden_tables.py`).
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

from tests.support.every_kind import answers, changed_columns, every_kind, partitioned, published, with_regions_by_hand

FOLDER = Path(__file__).parent
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def main(name: str, kind: str = "") -> None:
    """Write `NAME.zip` with the objects by key, and `NAME.json` with the answers of every reader."""
    target = FOLDER / f"{name}.zip"
    if target.exists():
        raise SystemExit(f"{target} exists, and golden files are never written again; choose another name")
    kinds = {
        "columns": changed_columns,
        "partitions": partitioned,
        "regions": with_regions_by_hand,
        "mirror": published,
    }
    table = kinds.get(kind, every_kind)()
    found = answers(table.store, table.clock, table.older)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for info in sorted(table.store.list(""), key=lambda each: each.key):
            archive.writestr(zipfile.ZipInfo(info.key, LONG_AGO), table.store.get(info.key).data)
    expected = {"older": table.older, "now_ms": table.clock.now, "answers": found}
    (FOLDER / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
