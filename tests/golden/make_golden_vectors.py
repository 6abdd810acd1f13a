"""Write the golden table of vector indexes, once: python -m tests.golden.make_golden_vectors NAME

The program writes the files once and never rewrites them (`tests/integration/test_golden_vectors.py`).
"""

from __future__ import annotations

import json
import sys
import zipfile
from unittest.mock import patch

from storage_core.index.vector import segment
from tests.golden.make_golden import FOLDER, LONG_AGO
from tests.support.golden_vectors import QUERIES, answers, vector_table

VECTORS = FOLDER / "vectors"


def main(name: str) -> None:
    """Write `NAME.zip` with the objects by key, and `NAME.json` with search results. Segments have clusters."""
    target = VECTORS / f"{name}.zip"
    if target.exists():
        raise SystemExit(f"{target} exists, and golden files are never written again; choose another name")
    few = {"flat_bytes": 2**10}
    with patch.dict(segment.train.__kwdefaults__ or {}, few), patch.dict(segment.build.__kwdefaults__ or {}, few):
        table = vector_table()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for info in sorted(table.store.list(""), key=lambda each: each.key):
            archive.writestr(zipfile.ZipInfo(info.key, LONG_AGO), table.store.get(info.key).data)
    expected = {"now_ms": table.clock.now, "queries": QUERIES, "answers": answers(table.store, table.clock, QUERIES)}
    (VECTORS / f"{name}.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
