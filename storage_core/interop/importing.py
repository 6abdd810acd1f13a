"""The import of a source into a new or an existing table. Each source is imported once (decision 0033)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from storage_core.base.errors import InvalidInput, WriterFenced
from storage_core.base.text import quoted
from storage_core.data.formats.keys import short_hash
from storage_core.data.rows.incoming import PIECE_BYTES
from storage_core.data.rows.times import within_calendar
from storage_core.data.rows.vectors import require_valid_embeddings
from storage_core.interop.import_given import AS_IT_IS, Imported, Source, TableOptions
from storage_core.log.actions import Action, Add, Metadata, Txn
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import UNFINISHED_IMPORT, Snapshot, require_imported
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write

OPERATION = "IMPORT"
_APP = "import:"

_logger = logging.getLogger(__name__)

Make = Callable[[pa.Schema, Mapping[str, str]], Snapshot]
"""Function that creates the table with these columns and settings."""


def import_rows(
    log: TransactionLog, source: Source, make: Make, *, name: str | None = None, wanted: TableOptions = AS_IT_IS
) -> Imported:
    """Import all rows of a source into the table.

    Create the table if it is missing. The rows are durable after the call.

    Types and names are checked before the creation of the table. Other processes cannot open a new table before the end
    of its import. The import never treats rows as late.

    The rows of an append table are sorted and written in pieces, and one commit adds all rows. An import that is
    interrupted before the commit can be run again. The commit stores the ids of the source and of its content. A second
    import of the same content does nothing.

    The rows of a keyed table are put by key through a writer. The source is recorded in the log after all rows are
    flushed. After an interruption, a repeated import puts the rows again. The table then has the same rows as after an
    uninterrupted import.

    Raises the errors of an append, and the errors below.

    Args:
        log: Transaction log of the table.
        source: Source of the rows.
        make: Function that creates the table.
        name: Recorded name of the source. None means the location of the source.
        wanted: Options that an existing table must have.

    Raises:
        InvalidInput: The source was imported with other content, or rows do not fit. The error names file and column.
        CommitConflict: Another process imports the source with other content at the same time.
        WriterFenced: Another writer claimed a region of a keyed table.

    Cost:
        The requests of the source, one PUT per split, and a commit.
    """
    if name is not None and (not name or not name.isprintable()):
        raise InvalidInput(f"the name of the import is {quoted(name)}. Give a name of printable text")
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
    """Return the new table. Other processes cannot open the new table yet.

    Return None if another process created the table in the meantime.
    """
    try:
        return make(source.schema, {UNFINISHED_IMPORT: source.identity})
    except InvalidInput:
        if log.exists():
            return None
        raise


def _require_same_source(log: TransactionLog, snapshot: Snapshot, source: Source) -> None:
    """Raise `InvalidInput` if another import created the keyed table.

    The import that created the table may have written rows before it was interrupted.
    """
    made_by = snapshot.metadata.configuration.get(UNFINISHED_IMPORT, source.identity)
    if snapshot.config.kind == "keyed" and made_by != source.identity:
        require_imported(log.store.uri, snapshot)


def _finished(snapshot: Snapshot) -> list[Metadata]:
    """If this is the first import into the table, return the change that lets other processes open the table."""
    settings = dict(snapshot.metadata.configuration)
    if settings.pop(UNFINISHED_IMPORT, None) is None:
        return []
    return [replace(snapshot.metadata, configuration=settings)]


def _names(source: Source, name: str | None) -> tuple[str, str]:
    """Return the names of two transactions.

    The first name identifies the source, and the second name identifies the source and its content.
    """
    app = f"{_APP}{short_hash(source.identity if name is None else f'name:{name}')}"
    return app, f"{app}@{short_hash(source.content)}"


def _is_done(log: TransactionLog, snapshot: Snapshot, source: Source, name: str | None) -> bool:
    """Return whether the table contains the source.

    Raises `InvalidInput` if the source was imported with other content.
    """
    whole, content = _names(source, name)
    if snapshot.txns.find(content) is not None:
        return True
    if snapshot.txns.find(whole) is None:
        return False
    called = source.name if name is None else f"the import {name!r}"
    raise InvalidInput(
        f"{log.store.uri}: {called} was imported before with other content, so rows would be imported twice. Import "
        "only the new rows, or all rows into a new table. To import all rows again, give another name",
        uri=log.store.uri,
    )


def _records(log: TransactionLog, source: Source, name: str | None) -> list[Txn]:
    # The commit contains two transactions. If two imports with different content run concurrently, the second import
    # finds the first transaction. The second import then reports a conflict.
    now_ms = log.clock.now_ms()
    return [Txn(appId=each, version=1, lastUpdated=now_ms) for each in _names(source, name)]


def _pieces(source: Source, snapshot: Snapshot) -> Iterator[pa.Table]:
    """Yield the rows in pieces of about 64 MiB.

    A piece may contain rows of several files. Each piece becomes separate splits.
    """
    held: list[pa.Table] = []
    size = 0
    for rows in source.rows(snapshot.schema):
        sound = require_valid_embeddings(within_calendar(rows), snapshot.config.nonzero_vectors)
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
            f"{fenced.found}. Some rows of {source.name} may be imported. Run the import again after that writer has "
            "ended. A keyed table then still contains each row once"
        ) from fenced
    metrics = {"rows_in": rows, "rows_out": 0, "splits_out": 0, "files": source.files}
    head = log.refresh(snapshot)
    actions: list[Action] = [*_records(log, source, name), *_finished(head)]
    result = log.commit(head, actions, operation=OPERATION, metrics=metrics)
    if result.already_committed:
        return Imported(result.version, by_another=True)
    return Imported(result.version, result.commit_id, rows, source.files)


def _put_rows(log: TransactionLog, snapshot: Snapshot, source: Source) -> int:
    """Put all rows by key, flush them, and return their number."""
    from storage_core.data.rows.keys import require_short_keys
    from storage_core.write.region.records import require_keys
    from storage_core.write.region.router import open_writer

    rows = 0
    with open_writer(log, snapshot) as writer:
        for piece in _pieces(source, snapshot):
            require_keys(piece, snapshot.config.primary_key)
            require_short_keys(piece, snapshot.config.primary_key)
            writer.put(piece)
            rows += piece.num_rows
        writer.flush()
    return rows
