"""Commands for raw logs: `append --table` and `raw`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import BARE_NAME, DryRun, Json, duration_ms, run_here
from pipelines.commands.output import cell, instant_ms, number
from storage_core.base.errors import Corrupt, InvalidInput, NotFound, TidemarkError, Unavailable
from storage_core.base.text import counted, did_you_mean
from storage_core.data.steps import CollectRaw

if TYPE_CHECKING:
    from pipelines.tables import DeclaredRawLog
    from storage_core.data.formats.raw_chunk import Operation
    from storage_core.raw_log_steps import DistributeTables
    from storage_core.store.contract import ObjectStore
    from storage_core.write.raw_log.history import Damage, History, RawSegment, Verified
    from storage_core.write.raw_log.records import RawRecord
    from storage_core.write.raw_log.writer import RawLog

Also = Annotated[list[str] | None, typer.Option("--also", metavar="URI", help="Another store of the raw log.")]
Optional_ = Annotated[
    list[str] | None, typer.Option("--optional", metavar="URI", help="A store of the raw log that may fail.")
]
TableName = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Write to the raw log at URI. The lines are rows of this table."),
]
KeyField = Annotated[
    str | None, typer.Option("--key", metavar="FIELD", help="Raw log: the field with the record's key.")
]
UniqueBy = Annotated[
    str | None,
    typer.Option(
        "--unique-by", metavar="FIELD", help="Raw log: the field with the record's id. A repeated id is ignored."
    ),
]
RawOperation = Annotated[
    Literal["put", "patch", "delete", "reset"], typer.Option("--operation", help="Raw log: the operation of each line.")
]

Where = Annotated[str, typer.Argument(metavar="URI", help="A raw log: its name in raw_logs/*.yaml, or a store.")]

_READ_BYTES = 2**20
_LONGEST_LINE_BYTES = 8 * 2**20
_MOST_REJECTED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTarget:
    """The stores to which `append --table` writes records, and the options of these records."""

    stores: Sequence[str]
    optional: Sequence[str]
    table: str
    operation: Operation
    key: str | None
    unique_by: str | None = None


@dataclass(slots=True)
class _Tally:
    """The counts of the lines until now. `rejected` contains the first lines that are not valid rows."""

    acknowledged: int = 0
    last_line: int = 0
    bad: int = 0
    rejected: list[dict[str, object]] = field(default_factory=list)

    def reject(self, file: str, line: int, data: bytes, reason: str) -> None:
        self.bad += 1
        if len(self.rejected) < _MOST_REJECTED:
            self.rejected.append({"file": file, "line": line, "reason": reason, **_shown(data)})


def raw_stores(text: str, also: Sequence[str], optional: Sequence[str], table: str) -> tuple[list[str], list[str]]:
    """Return the URIs of a raw log's mandatory stores, and the URIs of its optional stores.

    `text` is the name of a declared raw log, or the location of a store.

    Raises `InvalidInput` if the raw log is declared and does not feed the table.
    """
    from pipelines.tables import read_raw_logs, tables_folder
    from storage_core.base.text import names_of
    from storage_core.change.declaration_parts import below
    from storage_core.store.resolve import canonical

    root = tables_folder().parent
    known = _declared_raw_log(text)
    if known is None:
        mandatory, others = [_location(each) for each in (text, *also)], [*optional]
        for uri in mandatory:
            _refuse_table(uri)
    elif also or optional:
        raise InvalidInput(f"{text} is declared with its stores. Leave --also and --optional out.")
    else:
        stores = known.declaration.stores
        mandatory = [below(root, each.uri) for each in stores if each.mandatory]
        others = [below(root, each.uri) for each in stores if not each.mandatory]
    own = {canonical(each) for each in mandatory}
    for each in read_raw_logs(tables_folder()).raw_logs:
        one = each.declaration
        if own & {canonical(below(root, place)) for place in one.uris} and not one.feeds(table):
            near = did_you_mean(table, one.tables)
            raise InvalidInput(f"the raw log {one.name!r} has no table {table!r}. It has {names_of(one.tables)}{near}")
    return mandatory, others


def append_lines(file: str, target: RawTarget, *, file_format: str | None, as_json: bool) -> None:
    """Append each line as one record. Print the number of acknowledged records.

    Lines that arrive together are written in one chunk. Lines that are not valid rows are skipped. All other lines are
    acknowledged.

    Raises:
        InvalidInput: At least one line was skipped. The error is raised after all lines are read, and contains the
            skipped lines.
        TidemarkError: An error of the raw log. The message contains the line up to which rows are acknowledged.
    """
    from storage_core.data.formats.keys import validate_table_name
    from storage_core.write.raw_log.history import RawStore
    from storage_core.write.raw_log.writer import RawLog

    if file_format not in (None, "ndjson"):
        raise InvalidInput(f"a raw log takes NDJSON lines, not {file_format}. Leave --format out.")
    validate_table_name(target.table)
    stores = [*map(RawStore, target.stores), *(RawStore(each, mandatory=False) for each in target.optional)]
    with _opened(file) as stream, RawLog(stores) as log:
        tally = _append_all(log, stream, target, file)
        log.close()
        report = [asdict(each) for each in log.report()]
    about = {"writer": log.writer_id, "records": tally.acknowledged, "stores": report}
    if tally.bad:
        raise InvalidInput(
            f"{counted(tally.bad, 'line')} {'is not a valid row' if tally.bad == 1 else 'are not valid rows'}. "
            f"{counted(tally.acknowledged, 'row')} of the other lines {'is' if tally.acknowledged == 1 else 'are'} "
            "acknowledged. Correct these lines, then append only these lines",
            rejected=tally.rejected,
        )
    if as_json:
        output.json_line({"status": "acknowledged" if tally.acknowledged else "nothing_to_do", **about})
    else:
        output.line(f"{counted(tally.acknowledged, 'row')} acknowledged (writer {log.writer_id})")


def raw(
    uri: Where,
    *,
    also: Also = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every chunk. Exit with 4 if a chunk is missing or damaged.")
    ] = False,
    heal: Annotated[
        bool, typer.Option("--heal", help="Copy to each store the chunks that only other stores have.")
    ] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Delete chunks that are in every table and older than the retention.")
    ] = False,
    horizon: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="With --collect: how long a chunk is kept in the plan (default: 24h)."),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """List the segments of a raw log, and its missing chunks.

    For a declared raw log, the output also contains the chunks that are not yet in its tables. --heal copies missing
    chunks to each store. --verify compares the content of each copy, and needs --heal. --collect deletes old chunks.

    Example: tidemark raw events --verify
    """
    known = _declared_raw_log(uri)
    if heal and collect:
        raise InvalidInput("--heal and --collect are separate runs. Give one of them.")
    if collect:
        _collect(uri, known, horizon_ms=duration_ms("--horizon", horizon), dry_run=dry_run, as_json=as_json)
        return
    if horizon is not None or (dry_run and not heal):
        raise InvalidInput("--horizon goes with --collect, and --dry-run with --collect or --heal. Add one of them")
    at = _at_places(uri, also or (), known)
    if heal:
        _heal(at.stores, verify=verify, dry_run=dry_run, as_json=as_json)
    else:
        _listed_segments(at.history(), at, verify=verify, as_json=as_json)


def _listed_segments(history: History, at: RawPlaces, *, verify: bool, as_json: bool) -> None:
    from storage_core.base.clock import SystemClock

    found = history.verify() if verify else None
    closed = history.closed_segments(SystemClock().now_ms(), at.closed_after_ms)
    about = {**_described(history, found, closed), **at.backlog(history)}
    if as_json:
        output.json_line(about)
    else:
        _show(about)
    if found is not None and (found.gaps or found.damaged):
        raise Corrupt(
            f"{counted(len(found.gaps), 'range')} of records and an undamaged copy of "
            f"{counted(len(found.damaged), 'chunk')} are missing in all stores",
            advice="copy a backup of live/ into any store. This repairs both",
        )


def _append_all(log: RawLog, stream: BinaryIO, target: RawTarget, file: str) -> _Tally:
    tally = _Tally()
    try:
        for lines in _blocks(stream):
            records = [*_records(lines, target, tally, file)]
            log.append_many(records)
            tally.acknowledged += len(records)
            tally.last_line = lines[-1][0]
    except TidemarkError as error:
        before = f"{tally.acknowledged:,} rows of the lines up to {tally.last_line:,} are acknowledged"
        raise error.reworded(f"{before}. Then: {error.found}") from error
    return tally


def _records(lines: Sequence[tuple[int, bytes]], target: RawTarget, tally: _Tally, file: str) -> Iterator[RawRecord]:
    from storage_core.data.formats.raw_fields import decode_fields
    from storage_core.write.raw_log.records import Named, prepared, record_of

    named = Named(key=target.key, id=target.unique_by)

    for at, data in lines:
        if not data.strip():
            continue
        try:
            fields = decode_fields(data.decode("utf-8-sig"))
            record = record_of(target.table, fields, operation=target.operation, named=named)
            prepared(record, now_ms=0)  # if one line is invalid, the other lines are still written
        except UnicodeDecodeError:
            tally.reject(file, at, data, "the line is not UTF-8")
        except InvalidInput as error:
            tally.reject(file, at, data, str(error))
        else:
            yield record


def _blocks(stream: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yield lines with their numbers when they arrive. If a pipe pauses, yield all complete lines before the pause."""
    read = getattr(stream, "read1", stream.read)
    rest, number = b"", 0
    while chunk := read(_READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE_BYTES:
            raise InvalidInput(
                f"line {number + len(lines) + 1:,} is longer than {_LONGEST_LINE_BYTES:,} bytes. "
                "Split the line into several lines"
            )
        if lines:
            yield [*enumerate(lines, number + 1)]
            number += len(lines)
    if rest:
        yield [(number + 1, rest)]


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    path = Path(file)
    if not path.exists():
        raise NotFound(f"{file}: there is no such file or folder. Correct the location")
    if path.is_dir():
        raise InvalidInput(f"{file} is a folder. Append one file")
    with path.open("rb") as stream:
        yield stream


def _shown(data: bytes) -> dict[str, object]:
    try:
        return {"text": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"text": base64.b64encode(data).decode("ascii"), "encoding": "base64"}


def _described(history: History, found: Verified | None, closed: Sequence[RawSegment]) -> dict[str, object]:
    names = {(each.writer, each.segment_ms) for each in closed}
    segments = [{**asdict(each), "closed": (each.writer, each.segment_ms) in names} for each in history.segments()]
    return {
        "stores": [store.uri for store in history.stores],
        "unreachable": list(history.unreachable),
        "writers": len(history.writers),
        "segments": segments,
        "missing_chunks": [asdict(each) for each in history.missing],
        "records": None if found is None else found.records,
        "gaps": None if found is None else [asdict(each) for each in found.gaps],
        "damaged": None if found is None else [_damage(each) for each in found.damaged],
    }


def _damage(found: Damage) -> dict[str, object]:
    return {"key": found.chunk.keys[0], "found": list(found.reasons)}


def _show(about: dict[str, object]) -> None:
    shown = {"segment_ms": instant_ms, "writer": cell, "first_number": number, "last_number": number}
    metrics = {"chunks": number, "bytes": number, "closed": cell}
    _list(about["segments"], {**shown, **metrics}, "the raw log is empty")
    _list(about["missing_chunks"], {"writer": cell, "first": number, "last": number}, "no chunk is missing")
    if about["records"] is not None:
        output.line(f"records read: {number(about['records'])}")
        _list(about["gaps"], {"writer": cell, "first": number, "last": number}, "no record is missing")
        _list(about["damaged"], {"key": cell, "found": cell}, "no chunk is damaged")
    output.line(f"{counted(_count(about['chunks']), 'chunk')}, {number(about['bytes'])} bytes")
    if isinstance(waiting := about["tables"], dict):
        lacking = ", ".join(f"{name} {number(count)}" for name, count in waiting.items())
        output.line(f"chunks that are not in a table yet: {lacking or 'none'}")
    if about["oldest_waiting_ms"] is not None:
        output.line(f"the oldest of these chunks began at {instant_ms(about['oldest_waiting_ms'])}")
    for name in ("stores", "unreachable"):
        for uri in _listed(about[name]):
            output.line(f"{'store' if name == 'stores' else 'does not answer'}: {uri}")


def _count(found: object) -> int:
    return found if isinstance(found, int) else 0


def _list(found: object, shown: dict[str, output.Show], nothing: str) -> None:
    output.records([each for each in _listed(found) if isinstance(each, dict)], shown, as_json=False, nothing=nothing)


def _listed(found: object) -> Sequence[object]:
    return found if isinstance(found, list) else []


# Stores of a raw log.


@dataclass(frozen=True, slots=True)
class RawPlaces:
    """The stores of a raw log. If the raw log is declared, `declared` is set."""

    stores: Sequence[ObjectStore]
    declared: DistributeTables | None = None

    @property
    def closed_after_ms(self) -> int:
        """The age in ms at which a segment is closed.

        The declaration sets this age. Without a declaration, it has its default.
        """
        from storage_core.write.raw_log.history import CLOSED_AFTER_MS

        return CLOSED_AFTER_MS if self.declared is None else self.declared.raw.closed_after

    def history(self) -> History:
        """Return the joint history of all stores."""
        from storage_core.write.raw_log.history import union

        return union(self.stores) if self.declared is None else self.declared.history

    def backlog(self, history: History) -> dict[str, object]:
        """Return the size of the raw log, and the chunks that are not yet in its tables.

        For a raw log without a declaration, the value for the missing chunks is None.
        """
        from storage_core.write.distribution.work import backlog

        known = self.declared
        found = asdict(backlog(history, {} if known is None else known.offsets()))
        held = {name: found[name] for name in ("chunks", "bytes")}
        others = {name: value if known else None for name, value in found.items() if name not in held}
        return {**held, **others, "retention_ms": known.raw.retention if known else None}


def _declared_raw_log(text: str) -> DeclaredRawLog | None:
    """Return the declared raw log with this name, or None. Raises `InvalidInput` if the declaration is invalid."""
    from pipelines.tables import read_raw_logs, tables_folder

    if not BARE_NAME.fullmatch(text):
        return None
    known = read_raw_logs(tables_folder())
    is_known = text in {each.declaration.name for each in known.raw_logs}
    return known.find(text) if is_known or text in {each.file.stem for each in known.problems} else None


def _location(text: str) -> str:
    """Return the location of a raw log's store. Raises `NotFound` for a single word that is not a folder."""
    from pipelines.tables import read_raw_logs, tables_folder
    from storage_core.store.resolve import check_location

    if BARE_NAME.fullmatch(text) and not Path(text).exists():
        known = [each.declaration.name for each in read_raw_logs(tables_folder()).raw_logs]
        raise NotFound(
            f"{text!r} is neither a raw log declared in raw_logs/*.yaml (declared: {', '.join(known) or 'none'}) nor a "
            f"folder here{did_you_mean(text, known) or '. Write the location of a new raw log as ./' + text}"
        )
    return check_location(text)


def _refuse_table(uri: str) -> None:
    """Raise `InvalidInput` if a table is at this location. Records at this location would never be distributed."""
    from storage_core.table import exists

    if exists(uri):
        raise InvalidInput(
            f"{uri} is a table, but --table needs a raw log. Leave --table out to append to this table, or give a "
            "raw log"
        )


def _at_places(text: str, also: Sequence[str], known: DeclaredRawLog | None) -> RawPlaces:
    """Return the declared or given stores of a raw log. Raises `InvalidInput` if a declared log is given stores."""
    if known is None:
        from storage_core.store.resolve import open_store
        from storage_core.write.raw_log.history import require_raw_log

        stores = [open_store(_location(each)) for each in (text, *also)]
        require_raw_log(stores)
        return RawPlaces(stores)
    if also:
        raise InvalidInput(f"{text} is declared with its stores. Leave --also out.")
    from storage_core.raw_log_steps import DistributeTables

    opened = DistributeTables.open(known.files)
    return RawPlaces(opened.raw_stores, opened)


def _collect(text: str, known: DeclaredRawLog | None, *, horizon_ms: int | None, dry_run: bool, as_json: bool) -> None:
    """Delete the old chunks of a declared raw log, and print the report."""
    if known is None:
        from pipelines.tables import read_raw_logs, tables_folder

        known = read_raw_logs(tables_folder()).find(text)
    done = run_here(known.options(CollectRaw, horizon_ms=horizon_ms, dry_run=dry_run))
    output.report(done, as_json=as_json)


def _heal(stores: Sequence[ObjectStore], *, verify: bool, dry_run: bool, as_json: bool) -> None:
    """Copy missing chunks from store to store, and print the result.

    Raises:
        Corrupt: No store has an undamaged copy of an object.
        Unavailable: A store is still incomplete, because it or another store did not answer.
    """
    from storage_core.base.clock import SystemClock, SystemIds
    from storage_core.maintain.raw_logs import heal

    found = heal(stores, clock=SystemClock(), ids=SystemIds(), verify=verify, dry_run=dry_run)
    status = "planned" if dry_run else "healed" if found.bytes else "nothing_to_do"
    if as_json:
        output.json_line({"status": status, **asdict(found)})
    else:
        output.line(f"{status.replace('_', ' ')}: {found.objects:,} chunks and objects of record ids")
        for uri, lacking in found.lacking.items():
            copied, replaced = found.copied.get(uri, 0), found.replaced.get(uri, 0)
            output.line(f"{uri}: {lacking:,} missing, {copied:,} copied, {replaced:,} replaced")
    if found.damaged:
        raise Corrupt(f"{len(found.damaged):,} objects have no undamaged copy: {', '.join(found.damaged[:10])}")
    if not dry_run and not found.is_whole:
        silent = "; ".join([*found.unreachable, *(f"{where}: {why}" for where, why in found.failed.items())])
        raise Unavailable(f"not every store is complete: {silent}. Heal again when all stores answer.")
