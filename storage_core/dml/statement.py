"""A statement as a commit: what it does to the rows of a table, worked out anew on every head that it may follow.

Rows that a statement is about are those of the head it commits on: of a version that another commit made meanwhile it
looks at the splits that are new or have other deleted rows, and at nothing else again. So it is never planned again for
an append, a compaction or another statement, and its outcome is that of statements one after the other (decision 0130).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyroaring import BitMap

from storage_core.dml.changed import Changed
from storage_core.dml.finding import Finder
from storage_core.errors import CommitConflict
from storage_core.log.actions import Action, Add, Remove, Txn
from storage_core.log.deletion_vector import DeletionVector
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import all_of
from storage_core.split.hidden import hiding
from storage_core.split.vectors import PARALLEL_READS, deleted_rows_of_each

_logger = logging.getLogger(__name__)

_MOST_PLANS: Final = 5


@dataclass(frozen=True, slots=True)
class Found:
    """Live rows of a split that a statement is about, at their places; `hidden` were gone before."""

    split: Add
    hidden: BitMap
    rows: BitMap


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found in a split while these rows of it were gone."""

    hidden: BitMap
    rows: BitMap


Rewrite = Callable[[Snapshot, Sequence[Found]], Sequence[Add]]
"""Writes the rows that take the place of those found on a snapshot; the same for the same ones."""


@dataclass(slots=True, eq=False)
class Statement:
    """Hides the rows that `finder` finds, and adds splits in the same commit: `adds`, or those that `rewrite` writes.

    `txn` marks work that is done once. Memory: the places of the rows.
    """

    log: TransactionLog
    operation: str
    finder: Finder
    rewrite: Rewrite | None = None
    adds: Sequence[Add] = ()
    txn: Txn | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _vectors: dict[str, tuple[DeletionVector, BitMap]] = field(default_factory=dict)
    _entries: dict[str, tuple[Found, Add | Remove]] = field(default_factory=dict)
    _last: tuple[int, Sequence[Action]] | None = None
    _done: Changed = field(default_factory=lambda: Changed(version=0))
    _metrics: dict[str, Any] = field(default_factory=dict)
    _needless: Snapshot | None = None
    _schema: str = ""

    def run(self, head: Snapshot) -> tuple[Changed, Snapshot]:
        """Commit on `head` or a later version, and return what was done and the snapshot after it.

        Nothing to do commits nothing. Requests: those of the finder on each head, for what it has not seen yet; one
        GET per stored vector of a split in which rows may be, one PUT per vector that is stored; those of a commit.
        Raises `CommitConflict` after 10 lost races, or where the table is no longer one that the rows given were
        written for, and what finder and commit raise.
        """
        plans = 1
        while True:
            try:
                return self._committed(head)
            except CommitConflict:
                if self._needless is not None:
                    return Changed(version=self._needless.version), self._needless
                newest = self.log.refresh(head)
                if self.adds or newest.metadata == head.metadata or plans == _MOST_PLANS:
                    raise
                head, plans = newest, plans + 1
                self._last, self._seen = None, {}  # columns may be others

    def _committed(self, head: Snapshot) -> tuple[Changed, Snapshot]:
        self._schema = head.metadata.schemaString
        actions = self._on(head)
        if not actions:
            return Changed(version=head.version), head
        result = self.log.commit(head, actions, operation=self.operation, metrics=self._metrics, rebase=self)
        if result.already_committed:
            return Changed(version=result.version), result.snapshot
        done = replace(self._done, version=result.version, commit_id=result.commit_id)
        _logger.info("%s of %s: %d rows in %d splits", self.operation, self.log.store.uri, done.rows, done.splits)
        return done, result.snapshot

    def __call__(self, _: Sequence[Action], head: Snapshot) -> Sequence[Action]:
        """Return the actions on a newer head, as a `Rebase` does.

        Raises `CommitConflict` where there are none, and where names may mean other columns.
        """
        if head.metadata.schemaString != self._schema:
            raise CommitConflict(
                f"{self.log.store.uri}: the columns changed before version {head.version}; "
                f"plan the {self.operation.lower()} again from a fresh snapshot"
            )
        actions = self._on(head)
        if not actions:
            self._needless = head
            raise CommitConflict(
                f"{self.log.store.uri}: at version {head.version} no row is left to {self.operation.lower()}; nothing "
                "to plan again"
            )
        return actions

    def _on(self, head: Snapshot) -> Sequence[Action]:
        if self._last is None or self._last[0] != head.version:
            self._last = head.version, self._actions(head)
        return self._last[1]

    def _actions(self, head: Snapshot) -> Sequence[Action]:
        found = self._found(head)
        adds = self.adds if self.rewrite is None else self.rewrite(head, found)
        entries = all_of(self._entry, found, PARALLEL_READS)
        self._count(found, adds)
        return [*entries, *adds, *(() if self.txn is None else (self.txn,))]

    def _found(self, head: Snapshot) -> Sequence[Found]:
        """What is found on this head, by path; of splits that are as they were seen nothing is read."""
        candidates = self.finder.candidates(head)
        hidden, is_first = self._hidden(candidates.splits), not self._seen
        seen = {path: each for path, each in self._seen.items() if path in hidden and each.hidden <= hidden[path]}
        for add in candidates.splits:
            if add.path in candidates.whole:
                seen[add.path] = _Seen(BitMap(), BitMap(range(add.numRecords or 0)))
        unseen = [add for add in candidates.splits if add.path not in seen]
        # The finder refuses what is no condition, so it is called once also where the log tells every row.
        rows = self.finder.rows(head, unseen, hidden) if unseen or is_first else {}
        seen |= {add.path: _Seen(hidden[add.path], rows.get(add.path, BitMap())) for add in unseen}
        self._seen = seen
        every = (Found(add, hidden[add.path], seen[add.path].rows - hidden[add.path]) for add in candidates.splits)
        return sorted((each for each in every if each.rows), key=lambda each: each.split.path)

    def _hidden(self, splits: Sequence[Add]) -> Mapping[str, BitMap]:
        """The rows of each of these splits that are gone. One GET per stored vector that was not read yet."""
        marked = [(add, add.deleted_rows) for add in splits if add.deleted_rows is not None]
        known = {add.path: self._vectors[add.path] for add, _ in marked if add.path in self._vectors}
        new = [(add, vector) for add, vector in marked if add.path not in known or known[add.path][0] != vector]
        read = deleted_rows_of_each(self.log.store, [add for add, _ in new])
        self._vectors |= {add.path: (vector, rows) for (add, vector), rows in zip(new, read, strict=True)}
        gone = {add.path: self._vectors[add.path][1] for add, _ in marked}
        return {add.path: gone.get(add.path, BitMap()) for add in splits}

    def _entry(self, found: Found) -> Add | Remove:
        """The action that hides these rows, the same as the last time for the same rows."""
        known = self._entries.get(found.split.path)
        if known is None or known[0] != found:
            ids, now_ms = self.log.ids, self.log.clock.now_ms()
            rows, deleted = found.split.numRecords or 0, found.hidden | found.rows
            entry = hiding(self.log.store, found.split, deleted, rows=rows, ids=ids, now_ms=now_ms)
            known = self._entries[found.split.path] = found, entry
        return known[1]

    def _count(self, found: Sequence[Found], adds: Sequence[Add]) -> None:
        """Say what is done, in the metrics of the commit too: they are those of the head it lands on."""
        self._done = done = Changed(
            version=0,
            rows=sum(len(each.rows) for each in found),
            splits=len(found),
            rows_added=sum(add.numRecords or 0 for add in adds),
            splits_added=len(adds),
        )
        self._metrics.update(
            rows_in=done.rows, rows_out=done.rows_added, splits_in=done.splits, splits_out=done.splits_added
        )
