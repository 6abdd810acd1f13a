"""Write the golden clones, once: python -m tests.golden.make_golden_clones NAME

The program writes the files once and never rewrites them (`tests/integration/test_golden_clones.py`).
"""

from __future__ import annotations

import json
import sys
import zipfile

from tests.golden.make_golden import FOLDER, LONG_AGO
from tests.support.golden_clones import answers, made

CLONES = FOLDER / "clones"


def main(name: str) -> None:
    """Write `NAME.zip` with the objects of each table by key, and `NAME.json` with the answers of a reader."""
    target = CLONES / f"{name}.zip"
    if target.exists():
        raise SystemExit(f"{target} exists, and golden files are never written again; choose another name")
    stores = made()
    CLONES.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, store in stores.items():
            for info in sorted(store.list(""), key=lambda each: each.key):
                archive.writestr(zipfile.ZipInfo(f"{folder}/{info.key}", LONG_AGO), store.get(info.key).data)
    (CLONES / f"{name}.json").write_text(json.dumps(answers(stores), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
