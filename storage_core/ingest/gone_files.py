"""Pruning landed files that are gone from their place (decision 0133).

What is recorded of a landed file is needed while it lies there. When it is gone, and has been recorded for as long as
versions are retained, one transaction stays of it: the content whose rows are all in. A file that comes back with that
content gives no row again; one with another content is a new file. Of a file that is in by some of its windows only, or
whose content nobody recorded, everything stays: what is left of it could not be told from what is in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from storage_core.errors import CommitConflict
from storage_core.ingest.landing import LandingSpec, discover
from storage_core.ingest.progress import FILE_KINDS, file_app, path_of, pruned_app
from storage_core.log.actions import Action, RemoveTxn, Txn
from storage_core.log.conflicts.requirements import pruning
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Transactions

OPERATION = "PRUNE FILES"
MOST_PLANS = 10
FILES_PER_COMMIT = 20_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedFiles:
    """How many files were pruned, or would be, and how many transactions stand for them no longer."""

    files: int = 0
    transactions: int = 0


def prune_gone_files(
    log: TransactionLog,
    spec: LandingSpec,
    *,
    dry_run: bool = False,
    require_held: Callable[[], None] = lambda: None,
) -> PrunedFiles:
    """Prune the landed files that are gone, commit by commit, and checkpoint the last; killed anywhere, run it again.

    The landing place is listed before the log is read, so what landed meanwhile may be pruned as well: it is read
    once more then, and found to be in. A file counts as gone for good when its newest transaction is older than the
    table's retention of versions. One LIST per 1,000 files, the requests of opening and of reading all transactions,
    and those of a commit per 20,000 files. `require_held` raises before a commit when the caller lost its lease. Raises
    `CommitConflict` after 10 plans that others overtook.
    """
    there = {file.path for file in discover(spec)}
    head = log.snapshot()
    done = PrunedFiles()
    overtaken = 0
    while True:
        planned = gone_files(head.txns, there, before_ms=log.clock.now_ms() - head.config.version_retention_ms)
        if dry_run:
            found = list(planned)
            return PrunedFiles(files=len(found), transactions=sum(map(len, found)))
        batch = list(islice(planned, FILES_PER_COMMIT))
        if not batch:
            break
        require_held()
        try:
            head = log.commit(head, _actions(head, batch, log.clock.now_ms()), operation=OPERATION).snapshot
        except CommitConflict:
            overtaken += 1
            if overtaken == MOST_PLANS:
                raise
            head = log.snapshot()
            continue
        done = PrunedFiles(files=done.files + len(batch), transactions=done.transactions + sum(map(len, batch)))
    if done.files:
        log.checkpoint(head)  # or every opening would read of each file that it was pruned
        _logger.info("%s: pruned %d landed files that are gone", log.store.uri, done.files)
    return done


def gone_files(txns: Transactions, there: Iterable[str], *, before_ms: int) -> Iterator[Mapping[str, Txn]]:
    """Yield the transactions of each file that may be pruned: not `there`, all recorded before `before_ms`."""
    of_file: dict[str, dict[str, Txn]] = {}
    for kind in FILE_KINDS:
        for app_id, txn in txns.every(kind).items():
            of_file.setdefault(path_of(app_id), {})[app_id] = txn
    for path in sorted(of_file.keys() - set(there)):
        recorded = of_file[path]
        is_old = all(txn.lastUpdated is not None and txn.lastUpdated < before_ms for txn in recorded.values())
        if is_old and _may_be_pruned(path, recorded):
            yield recorded


def _may_be_pruned(path: str, recorded: Mapping[str, Txn]) -> bool:
    """Whether no row of the file is in, or all are, and of one content."""
    if not any(app_id.startswith("landed:") for app_id in recorded):
        return not _contents(recorded)
    return file_app(path) in recorded and len(_contents(recorded)) == 1


def _contents(recorded: Mapping[str, Txn]) -> set[int]:
    return {txn.version for app_id, txn in recorded.items() if app_id.startswith("content:")}


def _actions(head: Snapshot, batch: Iterable[Mapping[str, Txn]], now_ms: int) -> list[Action]:
    actions: list[Action] = []
    for recorded in batch:
        actions += [RemoveTxn(appId=app_id) for app_id in recorded]
        for content in _contents(recorded):
            path = path_of(next(iter(recorded)))
            stays = pruned_app(path, content)
            if stays not in head.txns:  # it went away before, with the same content
                actions.append(Txn(appId=stays, version=recorded[file_app(path)].version, lastUpdated=now_ms))
    return [*actions, pruning(head)]
