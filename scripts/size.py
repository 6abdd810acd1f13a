"""Count the product's code lines, and the modules through which a call runs: `make size`.

python -m scripts.size [--json]

A code line is not blank, not a comment and not a part of a docstring. A call runs through a module if the call executes
a function of the module. Code that only runs during an import does not count. Each call is measured in a process of its
own.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import pyarrow as pa

from tidemark import Table

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("storage_core", "jobs", "assets", "pipelines", "tidemark")
GENERATED = "_pb2.py"
TINY = 60
"""The report counts a module with at most this number of code lines as a tiny module."""

START = datetime(2026, 11, 1, tzinfo=UTC)
ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "at": pa.array([START] * 100, pa.timestamp("us", "UTC")),
        "text": ["a word"] * 100,
    }
)
SCHEMA = ROWS.schema

NO_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})

WAYS: Mapping[str, tuple[str, ...]] = {
    "Avro libraries": ("fastavro", "datafusion"),
    "hashes": ("hashlib.", "xxhash.", "zlib.crc32", "crc32c", "mmh3."),
    "JSON libraries": ("json.dumps", "orjson.", "msgspec.", "pydantic_core.to_json"),
    "caches in memory": ("lru_cache", "functools.cache", "OrderedDict"),
    "heaps and merges": ("heapq.",),
}
"""For each task, the words that show in the source text of a module that the module does this task.

A module is counted for a task if its text contains one of the task's words.
"""


def main() -> int:
    """Print the counts as a table, or as one JSON object."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--trace", choices=sorted(CALLS), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.trace:
        sys.stdout.write(json.dumps(sorted(_traced(CALLS[given.trace]))) + "\n")
        return 0
    counts = {**_of_the_tree(), **_of_interfaces(), **_of_ways(), **_of_calls()}
    if given.json:
        sys.stdout.write(json.dumps(counts, indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{name:44} {value:>12,}\n" for name, value in counts.items())
    return 0


def modules() -> Iterator[Path]:
    """Yield all files of the product except generated files."""
    for folder in PRODUCT:
        yield from (each for each in sorted((ROOT / folder).rglob("*.py")) if not each.name.endswith(GENERATED))


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that contain code."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {number for number in held if number <= source.count("\n")}


def import_lines(source: str) -> set[int]:
    """Return the numbers of the lines that contain import statements."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _of_the_tree() -> dict[str, int | float]:
    sources = {each: each.read_text(encoding="utf-8") for each in modules()}
    sizes = {each: len(code_lines(source)) for each, source in sources.items()}
    code = sum(sizes.values())
    imports = sum(len(import_lines(source)) for source in sources.values())
    with_code = [size for size in sizes.values() if size]
    return {
        "lines": sum(source.count("\n") for source in sources.values()),
        "code lines": code,
        "modules": len(with_code),
        "code lines per module": round(code / len(with_code)),
        f"modules of {TINY} code lines or fewer": sum(size <= TINY for size in with_code),
        "imports, percent of code": round(100 * imports / code, 1),
        "layers": len(_layers()),
        "folders of storage_core": sum(any(each.glob("*.py")) for each in _folders(ROOT / "storage_core")),
    }


def _folders(parent: Path) -> Iterator[Path]:
    return (each for each in parent.rglob("*") if each.is_dir())


def _layers() -> tuple[tuple[str, ...], ...]:
    """Return the table of layers from `tests/unit/test_layers.py`."""
    tree = ast.parse((ROOT / "tests" / "unit" / "test_layers.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "LAYERS":
            return tuple(ast.literal_eval(node.value)) if node.value else ()
    raise LookupError("tests/unit/test_layers.py has no table LAYERS")


def _of_interfaces() -> dict[str, int]:
    from pipelines.cli import build
    from storage_core.data.settings.table import TableConfig

    return {"commands": len(build().registered_commands), "settings of a table": len(fields(TableConfig))}


def _of_ways() -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in modules():
        source = each.read_text(encoding="utf-8")
        found.update(f"modules with {name}" for name, words in WAYS.items() if any(word in source for word in words))
    return {f"modules with {name}": found[f"modules with {name}"] for name in WAYS}


def _of_calls() -> dict[str, int]:
    return {f"modules that {name} runs through": len(_modules_of(name)) for name in CALLS}


def _modules_of(name: str) -> list[str]:
    command = [sys.executable, "-m", "scripts.size", "--trace", name]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _traced(prepare: Callable[[str], Callable[[], object]]) -> set[str]:
    """Call `prepare`, run the returned function, and return all modules whose code ran in any thread."""
    seen: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    with tempfile.TemporaryDirectory() as folder:
        call = prepare(folder)
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    prefixes = tuple(f"{ROOT / folder}{os.sep}" for folder in PRODUCT)
    return {str(Path(each).relative_to(ROOT)) for each in seen if each.startswith(prefixes)}


def _appended(folder: str, times: int = 4) -> Table:
    index = {"name": "words", "kind": "fulltext", "columns": ["text"]}
    table = Table.create(f"{folder}/events", SCHEMA, time_column="at", window="1h", indexes=[index])
    for _ in range(times):
        table.append(ROWS)
    return Table.open(table.uri)


def _keyed(folder: str) -> Table:
    table = Table.create(f"{folder}/things", SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put({"id": 1, "at": START, "text": "before"})
    return Table.open(table.uri)


def _append(folder: str) -> Callable[[], object]:
    table = _appended(folder, 1)
    return lambda: table.append(ROWS)


def _scan(folder: str) -> Callable[[], object]:
    table = _appended(folder)
    return lambda: table.scan(["id"], filter="id > 50").to_arrow()


def _sql(folder: str) -> Callable[[], object]:
    table = _appended(folder)
    return lambda: table.sql("select count(*) from t where id > 50").to_pylist()


def _search(folder: str) -> Callable[[], object]:
    table = _appended(folder)
    _upkeep("catch-up", table.uri)
    opened = Table.open(table.uri)
    return lambda: opened.search("word", index="words", limit=3)


def _put(folder: str) -> Callable[[], object]:
    table = _keyed(folder)

    def put() -> None:
        with table.writer() as writer:
            writer.put({"id": 2, "at": START, "text": "after"})

    return put


def _get(folder: str) -> Callable[[], object]:
    table = _keyed(folder)
    return lambda: table.get(1)


def _compact(folder: str) -> Callable[[], object]:
    table = _appended(folder)
    return lambda: _upkeep("compact", table.uri)


def _upkeep(command: str, uri: str) -> None:
    from pipelines.cli import main as tidemark

    with redirect_stdout(io.StringIO()):
        code = tidemark([command, uri])
    if code:
        raise RuntimeError(f"tidemark {command} ended with {code}")


def _materialize(folder: str) -> Callable[[], object]:
    from dagster import materialize

    from assets.factory import build_table_assets
    from assets.launcher import LAUNCHER, InProcessLauncher
    from jobs.spark.spark import Spark
    from storage_core.change.declaration import TableDeclaration

    columns = {"id": "long", "at": "timestamp", "text": "string"}
    declaration = TableDeclaration.model_validate({"name": "events", "uri": f"{folder}/events", "columns": columns})
    table = Table.declare(declaration)
    for _ in range(4):
        table.append(ROWS)
    compacted = [each for each in build_table_assets(declaration) if each.key.path[-1] == "compacted"]
    return lambda: materialize(compacted, resources={LAUNCHER: InProcessLauncher(Spark())})


CALLS: Mapping[str, Callable[[str], Callable[[], object]]] = {
    "append": _append,
    "scan": _scan,
    "sql": _sql,
    "search": _search,
    "put": _put,
    "get": _get,
    "tidemark compact": _compact,
    "a materialization": _materialize,
}


if __name__ == "__main__":
    sys.exit(main())
