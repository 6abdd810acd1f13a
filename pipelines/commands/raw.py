"""The raw log: `append --table` and `raw`."""

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
from pipelines.commands.arguments import DryRun, Json, duration_ms
from pipelines.commands.output import cell, instant_ms, number
from storage_core.errors import Corrupt, InvalidInput, NotFound, TidemarkError
from storage_core.wording import counted

if TYPE_CHECKING:
    from pipelines.commands.raw_upkeep import RawPlaces
    from storage_core.formats.raw_chunk import Operation
    from storage_core.raw_log.chunks import Damage
    from storage_core.raw_log.history import History, Verified
    from storage_core.raw_log.raw_log import RawLog
    from storage_core.raw_log.records import RawRecord

Also = Annotated[list[str] | None, typer.Option("--also", metavar="URI", help="One more store of the raw log.")]
Optional_ = Annotated[
    list[str] | None, typer.Option("--optional", metavar="URI", help="A store of the raw log that may fail.")
]
TableName = Annotated[
    str | None, typer.Option("--table", metavar="NAME", help="URI is a raw log; the lines are rows of this table.")
]
KeyField = Annotated[
    str | None, typer.Option("--key", metavar="FIELD", help="Raw log: the field that is the record's key.")
]
UniqueBy = Annotated[
    str | None,
    typer.Option("--unique-by", metavar="FIELD", help="Raw log: the field that is the record's id, taken once."),
]
RawOperation = Annotated[
    Literal["put", "patch", "delete", "reset"], typer.Option("--operation", help="Raw log: what each line does.")
]

Where = Annotated[str, typer.Argument(metavar="URI", help="A raw log: its name in raw_logs/*.yaml, or a store.")]

_READ_BYTES = 2**20
_LONGEST_LINE_BYTES = 8 * 2**20
_MOST_REJECTED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTarget:
    """Where `append --table` writes, and as what."""

    stores: Sequence[str]
    optional: Sequence[str]
    table: str
    operation: Operation
    key: str | None
    unique_by: str | None = None


@dataclass(slots=True)
class _Tally:
    """What became of the lines so far; `rejected` keeps the first ones of all that are no rows."""

    acknowledged: int = 0
    last_line: int = 0
    bad: int = 0
    rejected: list[dict[str, object]] = field(default_factory=list)

    def reject(self, file: str, line: int, data: bytes, reason: str) -> None:
        self.bad += 1
        if len(self.rejected) < _MOST_REJECTED:
            self.rejected.append({"file": file, "line": line, "reason": reason, **_shown(data)})


def append_lines(file: str, target: RawTarget, *, file_format: str | None, as_json: bool) -> None:
    """Append each line as one record, lines that come together in one chunk, and say what was acknowledged.

    A line that is no row is left out, the others are acknowledged; then raises `InvalidInput` with the bad lines.
    Raises what the raw log raises, with the line up to which rows are acknowledged.
    """
    from storage_core.formats.keys import validate_table_name
    from storage_core.raw_log.raw_log import RawLog
    from storage_core.raw_log.stores import RawStore

    if file_format not in (None, "ndjson"):
        raise InvalidInput(f"a raw log takes NDJSON lines, not {file_format}; leave --format out")
    validate_table_name(target.table)
    stores = [*map(RawStore, target.stores), *(RawStore(each, mandatory=False) for each in target.optional)]
    with _opened(file) as stream, RawLog(stores) as log:
        tally = _append_all(log, stream, target, file)
        log.close()
        report = [asdict(each) for each in log.report()]
    about = {"writer": log.writer_id, "records": tally.acknowledged, "stores": report}
    if tally.bad:
        raise InvalidInput(
            f"{tally.bad:,} lines are no rows and were left out; the other {tally.acknowledged:,} are acknowledged",
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
        bool, typer.Option("--verify", help="Read every chunk; missing or damaged ones end with exit code 4.")
    ] = False,
    heal: Annotated[bool, typer.Option("--heal", help="Copy to each store what it lacks and others have.")] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Delete chunks that every table has and that are past the retention.")
    ] = False,
    horizon: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With --collect: how long a chunk waits, instead of 24h.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """List the segments of a raw log, and what no store has.

    Of a declared raw log it also says what its tables lack. Or fill its stores (--heal; --verify compares each
    copy), or collect it.
    """
    from pipelines.commands.raw_upkeep import at_places, collected, declared_raw_log, healed

    known = declared_raw_log(uri)
    if heal and collect:
        raise InvalidInput("--heal and --collect are two runs; give one of them")
    if collect:
        collected(uri, known, horizon_ms=duration_ms("--horizon", horizon), dry_run=dry_run, as_json=as_json)
        return
    if horizon is not None or (dry_run and not heal):
        raise InvalidInput("--horizon goes with --collect, and --dry-run with --collect or --heal")
    at = at_places(uri, also or (), known)
    if heal:
        healed(at.stores, verify=verify, dry_run=dry_run, as_json=as_json)
    else:
        _listed_segments(at.history(), at, verify=verify, as_json=as_json)


def _listed_segments(history: History, at: RawPlaces, *, verify: bool, as_json: bool) -> None:
    from storage_core.clock import SystemClock

    found = history.verify() if verify else None
    about = {**_described(history, found, SystemClock().now_ms()), **at.backlog(history)}
    if as_json:
        output.json_line(about)
    else:
        _show(about)
    if found is not None and (found.gaps or found.damaged):
        raise Corrupt(
            f"the stores lack {len(found.gaps):,} stretches of records, {len(found.damaged):,} chunks are damaged in "
            "every store",
            advice="copy a backup of live/ into any of them, which heals both",
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
        raise error.reworded(f"{before}; then: {error.found}") from error
    return tally


def _records(lines: Sequence[tuple[int, bytes]], target: RawTarget, tally: _Tally, file: str) -> Iterator[RawRecord]:
    from storage_core.formats.raw_fields import decode_fields
    from storage_core.raw_log.records import Named, prepared, record_of

    named = Named(key=target.key, id=target.unique_by)

    for at, data in lines:
        if not data.strip():
            continue
        try:
            fields = decode_fields(data.decode("utf-8-sig"))
            record = record_of(target.table, fields, operation=target.operation, named=named)
            prepared(record, now_ms=0)  # what one line lacks must not keep back the others
        except UnicodeDecodeError:
            tally.reject(file, at, data, "the line is not UTF-8")
        except InvalidInput as error:
            tally.reject(file, at, data, str(error))
        else:
            yield record


def _blocks(stream: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yield numbered lines as they come: a pipe that pauses does not keep back what it has delivered."""
    read = getattr(stream, "read1", stream.read)
    rest, number = b"", 0
    while chunk := read(_READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE_BYTES:
            raise InvalidInput(f"line {number + len(lines) + 1:,} is longer than {_LONGEST_LINE_BYTES:,} bytes")
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
        raise NotFound(f"{file}: there is no such file")
    if path.is_dir():
        raise InvalidInput(f"{file}: is a folder; append one file")
    with path.open("rb") as stream:
        yield stream


def _shown(data: bytes) -> dict[str, object]:
    try:
        return {"text": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"text": base64.b64encode(data).decode("ascii"), "encoding": "base64"}


def _described(history: History, found: Verified | None, now_ms: int) -> dict[str, object]:
    closed = {(each.writer, each.segment_ms) for each in history.closed_segments(now_ms)}
    segments = [{**asdict(each), "closed": (each.writer, each.segment_ms) in closed} for each in history.segments()]
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
        output.line(f"chunks that tables lack: {lacking or 'none'}")
    if about["oldest_waiting_ms"] is not None:
        output.line(f"the oldest of them began {instant_ms(about['oldest_waiting_ms'])}")
    for name in ("stores", "unreachable"):
        for uri in _listed(about[name]):
            output.line(f"{'store' if name == 'stores' else 'does not answer'}: {uri}")


def _count(found: object) -> int:
    return found if isinstance(found, int) else 0


def _list(found: object, shown: dict[str, output.Show], nothing: str) -> None:
    output.records([each for each in _listed(found) if isinstance(each, dict)], shown, as_json=False, nothing=nothing)


def _listed(found: object) -> Sequence[object]:
    return found if isinstance(found, list) else []
