"""Print the rows that Daft finds in a table. The program needs the Python of `requirements/delta_readers.lock`.

Usage: daft_tables.py delta|iceberg PLACE VERSIONS_AS_JSON. PLACE is the location of the Delta table, or of Iceberg's
metadata. VERSIONS_AS_JSON contains pairs. Each pair contains a snapshot and the columns to read. For Delta, the program
reads the newest version. The program prints the rows of each pair as JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def main(format_: str, place: str, versions: str) -> None:
    os.environ["DO_NOT_TRACK"] = "true"
    import daft  # type: ignore[import-not-found]  # in that Python only

    found = []
    for version, names in json.loads(versions):
        is_delta = format_ == "delta"
        table = daft.read_deltalake(place) if is_delta else daft.read_iceberg(place, snapshot_id=version)
        rows = table.select(*names).to_arrow().to_pylist()
        found.append([[_plain(row[name]) for name in names] for row in rows])
    sys.stdout.write(json.dumps(found))


def _plain(value: object) -> object:
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    return value if value is None or isinstance(value, int | float | str) else str(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
