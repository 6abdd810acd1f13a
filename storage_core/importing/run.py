"""An import: the rows of a source into a new table or one that exists, in one commit, once (decision 0145)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from storage_core.errors import InvalidInput, WriterFenced
from storage_core.foreign_text import quoted
from storage_core.formats.short_hash import short_hash
from storage_core.importing.given import AS_IT_IS, TableOptions
from storage_core.importing.imported import Imported
from storage_core.importing.source import Source
from storage_core.log.actions import Action, Add, Metadata, Txn
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.unfinished_import import UNFINISHED_IMPORT, require_imported
from storage_core.rows.calendar import within_calendar
from storage_core.rows.incoming import PIECE_BYTES
from storage_core.rows.vectors import require_sound
from storage_core.split.context import context_of
from storage_core.split.write import sort_and_write

OPERATION = "IMPORT"
_APP = "import:"

_logger = logging.getLogger(__name__)

Make = Callable[[pa.Schema, Mapping[str, str]], Snapshot]
"""Makes the table with these columns and these settings."""


def import_rows(
    log: TransactionLog, source: Source, make: Make, *, name: str | None = None, wanted: TableOptions = AS_IT_IS
) -> Imported:
    """Bring all rows of a source into the table, which is made where there is none; durable when this returns.

    Everything that types and names can tell is checked before the table is made. A new table cannot be opened before
    its import has ended. The rows of an append table are sorted and written piece by piece, and one commit adds them
    all: one that is interrupted before it is simply run again. The commit records the source by `name`, else by where
    it is, with what it holds: imported again as it is, nothing is done. The rows of a keyed table are put by key,
    through a writer, and recorded when all are flushed; done again after an interruption they are put again, which by
    key is the same. Rows are never late.

    Raises `InvalidInput` for a source that was imported with other content, and naming file and column, for rows that
    do not fit, `CommitConflict` where somebody else imports it with other content meanwhile, `WriterFenced` where
    another writer claimed a region of a keyed table, and what an append raises. Requests: those of the source, one PUT
    per split, and those of a commit.
    """
    if name is not None and (not name or not name.isprintable()):
        raise InvalidInput(f"an import is called by printable text, found {quoted(name)}")
    snapshot = None if log.exists() else _made(log, make, source)
    if snapshot is None:
        snapshot = log.snapshot(unfinished=True)
        wanted.require_same(snapshot.config, log.store.uri)
        if _is_done(log, snapshot, source, name):
            return Imported(snapshot.version)
        _require_same_source(log, snapshot, source)
    source.require_fits(snapshot.schema)
    bring = _put if snapshot.config.kind == "keyed" else _added
    done = bring(log, snapshot, source, name)
    return replace(done, not_read=source.not_read.count, not_read_names=source.not_read.names)


def _made(log: TransactionLog, make: Make, source: Source) -> Snapshot | None:
    """The new table, which others cannot open yet, or None where another process made it meanwhile."""
    try:
        return make(source.schema, {UNFINISHED_IMPORT: source.identity})
    except InvalidInput:
        if log.exists():
            return None
        raise


def _require_same_source(log: TransactionLog, snapshot: Snapshot, source: Source) -> None:
    """Raise `InvalidInput` if another import made the table, and may have put rows by key before it ended early."""
    made_by = snapshot.metadata.configuration.get(UNFINISHED_IMPORT, source.identity)
    if snapshot.config.kind == "keyed" and made_by != source.identity:
        require_imported(log.store.uri, snapshot)


def _finished(snapshot: Snapshot) -> list[Metadata]:
    """The change that lets everybody open the table, where this import is its first."""
    settings = dict(snapshot.metadata.configuration)
    if settings.pop(UNFINISHED_IMPORT, None) is None:
        return []
    return [replace(snapshot.metadata, configuration=settings)]


def _names(source: Source, name: str | None) -> tuple[str, str]:
    """The transactions of an import: that the source was imported, and that it held this."""
    app = f"{_APP}{short_hash(source.identity if name is None else f'name:{name}')}"
    return app, f"{app}@{short_hash(source.content)}"


def _is_done(log: TransactionLog, snapshot: Snapshot, source: Source, name: str | None) -> bool:
    """Whether the source is in the table. Raises `InvalidInput` where it held something else when it was imported."""
    whole, content = _names(source, name)
    if snapshot.txns.find(content) is not None:
        return True
    if snapshot.txns.find(whole) is None:
        return False
    called = source.name if name is None else f"the import {name!r}"
    raise InvalidInput(
        f"{log.store.uri}: {called} was imported before, and held something else then; its rows would be in twice. "
        "Import what is new by itself, or all of it into a new table, or under another name if that is meant",
        uri=log.store.uri,
    )


def _records(log: TransactionLog, source: Source, name: str | None) -> list[Txn]:
    # Two, so that of two imports of different content at a time the second finds one of its two recorded: a conflict.
    now_ms = log.clock.now_ms()
    return [Txn(appId=each, version=1, lastUpdated=now_ms) for each in _names(source, name)]


def _pieces(source: Source, snapshot: Snapshot) -> Iterator[pa.Table]:
    """The rows in pieces of about 64 MiB, over the ends of files: each becomes splits of its own."""
    held: list[pa.Table] = []
    size = 0
    for rows in source.rows(snapshot.schema):
        sound = require_sound(within_calendar(rows), snapshot.config.nonzero_vectors)
        held.append(sound)
        size += sound.nbytes
        if size >= PIECE_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if size:
        yield pa.concat_tables(held)


def _added(log: TransactionLog, snapshot: Snapshot, source: Source, name: str | None) -> Imported:
    context = context_of(snapshot)
    adds: list[Add] = []
    rows = 0
    for piece in _pieces(source, snapshot):
        rows += piece.num_rows
        adds += sort_and_write(log.store, piece, context=context, ids=log.ids, now_ms=log.clock.now_ms())
    metrics = {"rows_in": rows, "rows_out": rows, "splits_out": len(adds), "files": source.files}
    actions: list[Action] = [*adds, *_records(log, source, name), *_finished(snapshot)]
    result = log.commit(snapshot, actions, operation=OPERATION, metrics=metrics)
    if result.already_committed:
        return Imported(result.version, by_another=True)
    _logger.info("imported %s into %s: %d rows, version %d", source.name, log.store.uri, rows, result.version)
    return Imported(result.version, result.commit_id, rows, source.files, len(adds))


def _put(log: TransactionLog, snapshot: Snapshot, source: Source, name: str | None) -> Imported:
    try:
        rows = _put_rows(log, snapshot, source)
    except WriterFenced as fenced:
        head = log.refresh(snapshot)
        if _is_done(log, head, source, name):
            return Imported(head.version, by_another=True)
        raise fenced.reworded(
            f"{fenced.found}. Some rows of {source.name} may be in: import it again when that writer is done; by key "
            "they are in once, and where it was the same import nothing is left to do"
        ) from fenced
    metrics = {"rows_in": rows, "rows_out": 0, "splits_out": 0, "files": source.files}
    head = log.refresh(snapshot)
    actions: list[Action] = [*_records(log, source, name), *_finished(head)]
    result = log.commit(head, actions, operation=OPERATION, metrics=metrics)
    if result.already_committed:
        return Imported(result.version, by_another=True)
    return Imported(result.version, result.commit_id, rows, source.files)


def _put_rows(log: TransactionLog, snapshot: Snapshot, source: Source) -> int:
    """Put all rows by key, flush them, and return how many they were."""
    from storage_core.region.records import require_keys
    from storage_core.region.router import open_writer
    from storage_core.rows.key_limit import require_short_keys

    rows = 0
    with open_writer(log, snapshot) as writer:
        for piece in _pieces(source, snapshot):
            require_keys(piece, snapshot.config.primary_key)
            require_short_keys(piece, snapshot.config.primary_key)
            writer.put(piece)
            rows += piece.num_rows
        writer.flush()
    return rows
