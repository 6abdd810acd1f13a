"""Write the golden table of the present formats, once: python -m tests.golden.make_golden NAME [KIND]

With `columns` as KIND it is one whose columns changed, with `partitions` one that is partitioned, with `regions` one
that has regions made by hand, with `mirror` one that is shown as Delta.

A golden file is what a release wrote. It is never written again: a new format gets a new name, and the old one must
keep opening (`tests/integration/test_golden_tables.py`).
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
    """Write `NAME.zip`, the objects by key, and `NAME.json`, what every reader answered."""
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
