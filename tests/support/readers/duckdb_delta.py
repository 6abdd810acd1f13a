"""What DuckDB's extension for Delta finds in a table: a program for the Python of `requirements/delta_readers.lock`.

duckdb_delta.py PLACE COLUMNS_AS_JSON: the columns to read at each version. Prints the rows of each as JSON.
duckdb_delta.py EXPRESSION: prints how many rows the relation has.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import duckdb  # an older one than the project's

_AS_JSON = {"TIMESTAMP WITH TIME ZONE": "epoch_us({})", "DATE": "{}::varchar"}


def _loaded(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    package = importlib.util.find_spec("duckdb_extension_delta")
    if package is None or package.origin is None:
        sys.exit("this Python has no extension of DuckDB for Delta")
    (extension,) = Path(package.origin).parent.rglob("*.duckdb_extension")
    return connection.execute(f"LOAD '{extension}'")


def count(expression: str) -> None:
    """Evaluate an expression of `duckdb`."""
    _loaded(duckdb.default_connection())
    sys.stdout.write(json.dumps(len(eval(expression, {"duckdb": duckdb}))))  # noqa: S307  # of our own README


def main(place: str, columns: str) -> None:
    connection = _loaded(duckdb.connect(config={"threads": 2}))
    found = []
    for version, names in enumerate(json.loads(columns)):
        connection.execute(f"ATTACH '{place}' AS v{version} (TYPE delta, VERSION {version})")
        types = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE v{version}").fetchall()}
        wanted = ", ".join(_expression(name, types[name]) for name in names)
        found.append(connection.execute(f"SELECT {wanted} FROM v{version}").fetchall())
        connection.execute(f"DETACH v{version}")
    sys.stdout.write(json.dumps(found))


def _expression(name: str, kind: str) -> str:
    form = "{}::varchar" if kind.startswith("DECIMAL") else _AS_JSON.get(kind, "{}")
    return form.format(f'"{name}"')


if __name__ == "__main__":
    (count if len(sys.argv) == 2 else main)(*sys.argv[1:])
