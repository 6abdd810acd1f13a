"""Compares how Tidemark and an independent second reader read the test files of other projects.

Run `python -m tests.support.landed_suites`. Each file lands alone, and the program compares its rows and rejections
with `second_readers`. The program prints the number of files, rows, rejections and refusals per suite, and each
difference.

A JSON text lands in several ways (`JSON_WAYS`), because a landed record must be an object:

- `document`: the file as it is, with the format `json`
- `lines`: the file as it is, with the format `ndjson`
- `value`: a line of NDJSON whose field `v` is the text
- `element`: an element of an array whose field `v` is the text, with the format `json`
- `scalar`: a line of NDJSON whose field `v` is the only element of the array in the text
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from jobs.spark.spark import Spark
from scripts.foreign_suites import SUITES, fetch
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.write.ingest.convert import shared_session
from storage_core.write.ingest.landing import LandingFormat, LandingSpec
from tests.support.drifting import Project
from tests.support.quarantined import Bench
from tests.support.rejected_lines import rejected_lines
from tests.support.second_readers import (
    REST,
    UNREADABLE,
    VALUE,
    Expected,
    csv_records,
    json_document,
    json_lines,
    lines,
    read_json,
    texts_of,
    typed_rows,
)
from tidemark import Table

JSON_TEST_SUITE: Final = "JSONTestSuite"
NOT_AN_OBJECT: Final = "the line is not a JSON object"
JSON_COLUMNS: Final = pa.schema([(VALUE, pa.string()), (REST, pa.string())])
JSON_WAYS: Final[Mapping[str, LandingFormat]] = {
    "document": "json",
    "lines": "ndjson",
    "value": "ndjson",
    "element": "json",
    "scalar": "ndjson",
}
"""The ways to write a JSON text into a landed file, and the format of the file for each way."""

_EXPAND: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
_FORMS: Final = {
    **dict.fromkeys((".json", ".avsc", ".jsn"), "json"),
    **dict.fromkeys((".csv", ".tsv", ".xls", ".xlsx", ".dbf", ".orc", ".pkl"), "csv"),
    **dict.fromkeys((".txt", ".sql", ".upl", ".pl", ""), "pattern"),
    ".avro": "avro",
    ".parquet": "parquet",
    ".feather": "arrow",
}
"""The landing format by file suffix. For a compressed file, the suffix before the compression suffix applies."""

_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "dummy.tsv": {"delimiter": "\t"},
    "sniff_limit.csv": {"delimiter": ";"},
    "test_csv_sniff.csv": {"delimiter": ";"},
    "no_header_row.csv": {"header": False, "columns": ("a", "b", "c")},
    "no_header_row2.csv": {"header": False, "columns": ("a", "b", "c")},
    "test_no_header.csv": {"header": False, "columns": ("a", "b", "c", "d")},
    "test_latin1.csv": {"encoding": "latin-1"},
    "test_latin1.sql": {"encoding": "latin-1"},
    "test_utf16_big.csv": {"encoding": "utf-16"},
    "test_utf16_little.csv": {"encoding": "utf-16"},
}
"""The settings of files that cannot be read with the default settings, by file name."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a landed file: its rows, the reason of each rejection, and the reason why the file is refused."""

    rows: Sequence[Any] = ()
    rejected: Sequence[str] = ()
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A landed file of a suite. `difference` is None if Tidemark and the second reader return the same rows."""

    suite: str
    way: str
    file: str
    landed: Landed
    difference: str | None


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A file of a suite: its name below the folder of the suite, its bytes and its bytes without compression."""

    suite: str
    name: str
    place: Path
    form: str
    data: bytes
    plain: bytes = field(repr=False)

    @property
    def plain_name(self) -> str:
        """The name without folders, and without the suffix of a compression."""
        return self.short_name if self.data is self.plain else self.place.stem

    @property
    def short_name(self) -> str:
        """The name without folders."""
        return self.place.name


def suite_files() -> Iterator[SuiteFile]:
    """Yield the files of all suites. Fetches the suites that are missing."""
    for suite in SUITES:
        folder = fetch(suite)
        for place in sorted(each for top in suite.folders for each in (folder / top).rglob("*") if each.is_file()):
            expand = _EXPAND.get(place.suffix)
            form = _FORMS.get(place.with_suffix("").suffix if expand else place.suffix)
            if form is None:  # the code and the notes of the project
                continue
            data = place.read_bytes()
            name = str(place.relative_to(folder))
            whose = JSON_TEST_SUITE if name.startswith("data/parsing/") else suite.package
            yield SuiteFile(whose, name, place, form, data, expand(data) if expand else data)


def outcomes(root: Path) -> Iterator[Outcome]:
    """Ingest each file of all suites by itself into a table below `root`. Yield the outcome of each file."""
    files = [*suite_files()]
    for way in JSON_WAYS:
        yield from _json_outcomes(root / way, way, files)
    for number, file in enumerate(files):
        match file.form:
            case "csv":
                yield _csv_outcome(root / str(number), file)
            case "pattern":
                yield _text_outcome(root / str(number), file)
            case "avro" | "parquet" | "arrow":
                yield _typed_outcome(root / str(number), file)


# JSON.


@dataclass(frozen=True, slots=True)
class JsonText:
    """The bytes and the name of the landed file that is made from a JSON file in one of `JSON_WAYS`."""

    name: str
    file: SuiteFile
    data: bytes


def json_texts(way: str, files: Iterable[SuiteFile]) -> list[JsonText]:
    """Return the text to land for each JSON file in one of `JSON_WAYS`. Files that cannot land in `way` are omitted."""
    texts = [(file, _json_text(way, file)) for file in files if file.form == "json"]
    return [
        JsonText(f"{way}-{number:03}-{file.short_name if data is file.data else file.plain_name}", file, data)
        for number, (file, data) in enumerate(texts)
        if data is not None
    ]


def _json_text(way: str, file: SuiteFile) -> bytes | None:
    """Return the landed bytes of a file, or None if the file cannot land in this way."""
    text = file.plain
    match way:
        case "document" | "lines":
            return file.data
        case "element":
            return b'[{"v":' + text + b"}]\n"
        case "scalar":
            inside = text.strip()
            if not (inside.startswith(b"[") and inside.endswith(b"]")) or b"\n" in inside:
                return None
            return b'{"v":' + inside[1:-1] + b"}\n"
        case _:
            return b'{"v":' + (_on_one_line(text) if _is_json(text) else text) + b"}\n"


def _on_one_line(text: bytes) -> bytes:
    """Return a JSON text without line breaks. The text has line breaks only between its values."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def _is_json(text: bytes) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def _json_outcomes(root: Path, way: str, files: Iterable[SuiteFile]) -> Iterator[Outcome]:
    form = JSON_WAYS[way]
    spec = LandingSpec(uri=str(root / "landing"), format=form, on_new_field=f"column:{REST}")
    bench = Bench(root, spec).create(TableConfig(), JSON_COLUMNS)
    texts = json_texts(way, files)
    for text in texts:
        bench.land(text.name, text.data)
    landed = land_alone(bench)
    for text in texts:
        plain = text.file.plain if text.data == text.file.data else text.data
        expected = json_document(plain) if form == "json" else json_lines(plain)
        found = landed.get(text.name, Landed())  # an empty file does not land
        yield Outcome(text.file.suite, way, text.file.name, found, _json_difference(text.file, way, found, expected))


def _json_difference(file: SuiteFile, way: str, landed: Landed, expected: Expected) -> str | None:
    """Return how Tidemark's rows differ from the second reader's rows, or from the result in the file name."""
    found = difference(landed, expected, lambda row, wanted: wanted.is_landed_as(row))
    return found or (_against_name(file, way, landed) if file.suite == JSON_TEST_SUITE else None)


def _against_name(file: SuiteFile, way: str, landed: Landed) -> str | None:
    """Return the difference between the result and the file name (`y_` is valid, `n_` is invalid, `i_` is either)."""
    is_refused = landed.refused or (landed.rejected and not landed.rows)
    if file.short_name.startswith("n_") and not is_refused:
        return f"{_counts(landed)}, and the suite requires a refusal"
    if file.short_name.startswith("y_") and way in ("document", "value", "element"):
        is_landed = not landed.refused and {*landed.rejected} <= {NOT_AN_OBJECT}
        return None if is_landed else f"{_counts(landed)}, and the suite requires a row"
    return None


# CSV and other text.


def _csv_outcome(root: Path, file: SuiteFile) -> Outcome:
    spec = LandingSpec(uri=str(root / "landing"), format="csv", **_SETTINGS.get(file.short_name, {}))
    try:
        names, expected = csv_records(_text(file, spec), spec.dialect)
    except (ValueError, OverflowError):
        names, expected = (), UNREADABLE
    columns = pa.schema(
        [(each, pa.string()) for each in dict.fromkeys(names) if each.strip()] or [("none", pa.string())]
    )
    landed = _landed_alone(root, spec, columns, file)
    return Outcome(file.suite, "csv", file.name, landed, difference(landed, expected, _is_same_record))


def _is_same_record(row: Mapping[str, str | None], wanted: Mapping[str, str]) -> bool:
    return {name: value or "" for name, value in row.items()} == wanted


def _text(file: SuiteFile, spec: LandingSpec) -> str:
    return file.plain.decode(spec.encoding or "utf-8-sig")


def _text_outcome(root: Path, file: SuiteFile) -> Outcome:
    settings = _SETTINGS.get(file.short_name, {})
    spec = LandingSpec(uri=str(root / "landing"), format="pattern", pattern=r"^(?P<line>(?s:.*))$", **settings)
    expected = lines(file.plain, spec.encoding or "utf-8")
    landed = _landed_alone(root, spec, pa.schema([("line", pa.string())]), file)
    return Outcome(file.suite, "pattern", file.name, landed, difference(landed, expected, lambda a, b: a == b))


def _landed_alone(root: Path, spec: LandingSpec, columns: pa.Schema, file: SuiteFile) -> Landed:
    bench = Bench(root, spec).create(TableConfig(), columns)
    bench.land(file.short_name, file.data)
    return land_alone(bench).get(file.short_name, Landed())


def land_alone(bench: Bench) -> dict[str, Landed]:
    """Ingest each landed file as a batch of its own, commit all of them, and return the result of each."""
    with shared_session():
        results = {work.landed.path: bench.execute([work]) for work in bench.works()}
    log = bench.log
    log.commit(log.snapshot(), [action for each in results.values() for action in each.actions], operation="INGEST")
    rejected = rejected_by_file(bench.store)
    return {
        name: _landed(
            [row for add in each.adds for row in read_split(bench.store, add).to_pylist()], rejected.get(name)
        )
        for name, each in results.items()
    }


def rejected_by_file(store: ObjectStore) -> dict[str, list[tuple[int | None, str]]]:
    """Return the line and the reason of each rejection, by file."""
    found: dict[str, list[tuple[int | None, str]]] = {}
    for each in rejected_lines(store):
        found.setdefault(each["source"], []).append((each["line"], each["reason"]))
    return found


def _landed(rows: Sequence[Any], rejected: Sequence[tuple[int | None, str]] | None) -> Landed:
    whole = next((reason for line, reason in rejected or () if line is None), None)
    return Landed(rows, [reason for line, reason in rejected or () if line is not None], whole)


# Typed files.


def _typed_outcome(root: Path, file: SuiteFile) -> Outcome:
    landed = _landed_typed(root, file)
    found = [difference(landed, each, lambda a, b: a == b) for each in typed_rows(file.form, file.place)]
    return Outcome(file.suite, file.form, file.name, landed, None if None in found else found[0])


def _landed_typed(root: Path, file: SuiteFile) -> Landed:
    """Ingest a file into a table that gets all columns from the file."""
    root.mkdir(parents=True)
    project = Project(root).declare(f"format: {file.form}, on_new_field: add, max_new_fields: 1000", "{none_: string}")
    (root / "landing" / file.short_name).write_bytes(file.data)
    run(Ingest(table_uri=project.uri, declaration=str(project.file)), Spark())
    table = Table.open(project.uri)
    rows = table.scan().to_arrow().drop_columns(["none_"])
    return _landed(texts_of(rows), rejected_by_file(table.store).get(file.short_name))


# The comparison, and the report.


def difference(landed: Landed, expected: Expected, is_same: Callable[[Any, Any], bool]) -> str | None:
    """Return the difference between the landed rows and the rows of the second reader, or None."""
    if expected.rows is None:
        is_refused = landed.refused is not None or (landed.rejected and not landed.rows)
        return None if is_refused else f"{_counts(landed)}, and the second reader refuses the file"
    if landed.refused is not None:
        return f"refused, and the second reader has {_counted(len(expected.rows), expected.rejected)}"
    if (len(landed.rows), len(landed.rejected)) != (len(expected.rows), expected.rejected):
        return f"{_counts(landed)}, and the second reader has {_counted(len(expected.rows), expected.rejected)}"
    wrong = sum(not is_same(row, wanted) for row, wanted in zip(landed.rows, expected.rows, strict=True))
    return f"{wrong} of {len(landed.rows)} rows have other values" if wrong else None


def _counts(landed: Landed) -> str:
    return _counted(len(landed.rows), len(landed.rejected))


def _counted(rows: int, rejected: int) -> str:
    return f"{rows} rows and {rejected} rejections"


def report(found: Iterable[Outcome]) -> str:
    """Return a Markdown table of counts, with a line for each suite and way of landing."""
    table = [
        "| Suite | Lands as | Files | Rows | Rejected | Refused files | Different |",
        "|---|---|---|---|---|---|---|",
    ]
    key = lambda each: (each.suite, each.way)  # noqa: E731  # the key of the groups
    for (suite, way), group in groupby(sorted(found, key=key), key):
        each = [*group]
        counts = (
            len(each),
            sum(len(one.landed.rows) for one in each),
            sum(len(one.landed.rejected) for one in each),
            sum(one.landed.refused is not None for one in each),
            sum(one.difference is not None for one in each),
        )
        table.append(f"| {suite} | {way} | {' | '.join(f'{count:,}' for count in counts)} |")
    return "\n".join(table) + "\n"


def main() -> int:
    """Print the counts, and each difference."""
    with tempfile.TemporaryDirectory(prefix="tidemark-suites-") as folder:
        found = [*outcomes(Path(folder))]
    different = [f"{each.way} {each.file}: {each.difference}" for each in found if each.difference is not None]
    sys.stdout.write("\n".join([report(found), *different, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
