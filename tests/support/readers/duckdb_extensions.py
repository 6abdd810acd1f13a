"""Print the rows that DuckDB's extensions find. The program needs the Python of `requirements/delta_readers.lock`.

- duckdb_extensions.py delta|iceberg PLACE VERSIONS_AS_JSON: print the rows of each version as JSON. PLACE is the
  location of the Delta table, or of Iceberg's metadata. VERSIONS_AS_JSON contains pairs. Each pair contains a version
  or a snapshot, and the columns to read.
- duckdb_extensions.py EXPRESSION: print the number of rows of the relation.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import duckdb  # an older release than the project's

_AS_JSON = {"TIMESTAMP WITH TIME ZONE": "epoch_us({})", "DATE": "{}::varchar"}
_READ = {
    "delta": "delta_scan('{}', version={})",
    "iceberg": "iceberg_scan('{}', snapshot_from_id={}::UBIGINT)",
}


def _loaded(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    for name in ("avro", "delta", "iceberg"):
        package = importlib.util.find_spec(f"duckdb_extension_{name}")
        if package is None or package.origin is None:
            sys.exit(f"this Python has no extension {name} of DuckDB")
        (extension,) = Path(package.origin).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    return connection


def count(expression: str) -> None:
    """Evaluate an expression of `duckdb`."""
    _loaded(duckdb.default_connection())
    sys.stdout.write(json.dumps(len(eval(expression, {"duckdb": duckdb}))))  # noqa: S307  # of docs/readers.md


def main(format_: str, place: str, versions: str) -> None:
    connection = _loaded(duckdb.connect(config={"threads": 2}))
    found = []
    for version, names in json.loads(versions):
        relation = _READ[format_].format(place, version)
        types = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}
        wanted = ", ".join(_expression(name, types[name]) for name in names)
        found.append(connection.execute(f"SELECT {wanted} FROM {relation}").fetchall())
    sys.stdout.write(json.dumps(found))


def _expression(name: str, kind: str) -> str:
    form = "{}::varchar" if kind.startswith("DECIMAL") else _AS_JSON.get(kind, "{}")
    return form.format(f'"{name}"')


if __name__ == "__main__":
    (count if len(sys.argv) == 2 else main)(*sys.argv[1:])
