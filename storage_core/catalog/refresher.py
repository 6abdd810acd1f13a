"""One table of a catalogue brought to the head of its log, or made again from it.

Where the log goes on from the version that the catalogue shows, only what was committed since is read. Everything else
is told apart by ids: a log that was put back to an older version and went on from there has another commit at that
version, a table that was moved has its own id elsewhere, and a place may hold another table by now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.catalog.answers import Outcome, Refreshed
from storage_core.catalog.apply import apply, load
from storage_core.catalog.database import Database
from storage_core.catalog.known import Known, another_table, catalog_id, every_known
from storage_core.catalog.schema import TABLES
from storage_core.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.log.actions import Action
from storage_core.log.advance import read_version, versions_after
from storage_core.log.boundary import first_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot

MOST_TURNS: Final = 10
NEW: Final = "the catalogue did not have it"
REQUESTED: Final = "it was asked for"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refresher:
    """Brings one table of a catalogue to the head of `log`."""

    database: Database
    log: TransactionLog
    name: str

    def refresh(self) -> Refreshed:
        """Apply what was committed since; load the table where the log does not go on from what the catalogue shows.

        Where it does: a GET of the version that is known, one per version since and those that find no further one, and
        one of the collector's boundary. Another refresher at work takes over its share of the versions. Raises
        `InvalidInput` where this place is known as that of another table, and where the table is at another place too;
        `CommitConflict` where others changed the catalogue all the time.
        """
        found = self._known()
        loaded, applied = "", 0
        for _ in range(MOST_TURNS):
            reason = NEW if found is None else self._doubt(found)
            if found is not None and not reason:
                head, count = self._follow(found)
                applied += count
                if head is not None and first_version(self.log.store) <= head.head_version + 1:
                    return _refreshed(head, loaded, applied)
                reason = "" if head is None else f"the versions after {head.head_version} were collected"
                found = head or found
            loaded = (self._load(found, reason) if reason else "") or loaded
            found = self._known()
        raise CommitConflict(f"{self._uri}: others changed the catalogue {MOST_TURNS} times meanwhile; try again")

    def rebuild(self) -> Refreshed:
        """Make the table again from the log, whatever the catalogue has of it or at its URI, and refresh it.

        What changed is known again since the version that it was known since, or the oldest that is retained. Readers
        see what was there before until it is all there.
        """
        snapshot = self.log.snapshot()
        known = self._known(TABLES.c.table_id == catalog_id(snapshot))
        self._load_from(snapshot, None if known is None else known.first_version)
        _logger.info("rebuilt %s in the catalogue %s", self._uri, self.database.place)
        done = self.refresh()
        now = self._known()
        if now is None:
            raise CommitConflict(f"{self._uri}: another process took it out of the catalogue; refresh it again")
        return _refreshed(now, done.reason or REQUESTED, done.versions)

    @property
    def _uri(self) -> str:
        return self.log.store.uri

    def _known(self, condition: sa.ColumnElement[bool] | None = None) -> Known | None:
        with self.database.read() as connection:
            wanted = TABLES.c.uri == self._uri if condition is None else condition
            return next(iter(every_known(connection, wanted)), None)

    def _doubt(self, known: Known) -> str:
        """Why the log may not go on from the version that is known; nothing where it does."""
        actions = read_version(self.log.store, known.head_version) if known.is_ours else None
        if actions is not None:
            return "" if _is_commit(known, actions) else f"its version {known.head_version} is another commit by now"
        head = self.log.snapshot()
        same = (catalog_id(head), head.version, head.timestamp)
        if same == (known.table_id, known.head_version, known.head_timestamp_ms):
            return ""
        if head.version < known.head_version:
            return f"its log ends before version {known.head_version}, which the catalogue knows"
        return f"the file of version {known.head_version} is not there any more"

    def _follow(self, found: Known) -> tuple[Known | None, int]:
        """Apply what follows; return what is known then and how many versions it took, None where another log's is."""
        head, applied = found, 0
        for version, actions in versions_after(self.log.store, found.head_version):
            if version > head.head_version:
                after = self.database.write(partial(apply, before=head, version=version, actions=actions))
                if after is not None:
                    head, applied = after, applied + 1
                    continue
                newer = self._known()
                if newer is None or newer.head_version < version:
                    return None, applied
                head = newer
            if version == head.head_version and not _is_commit(head, actions):
                return None, applied
        return head, applied

    def _load(self, found: Known | None, reason: str) -> str:
        """Load the table and return why; nothing where the catalogue has changed since it was `found`."""
        snapshot = self.log.snapshot()
        if found is not None and not found.is_of(snapshot):
            raise another_table(found, snapshot.table_id, self.database.place)
        elsewhere = self._known(TABLES.c.table_id == catalog_id(snapshot))
        if elsewhere is not None and elsewhere.uri != self._uri:
            _require_moved(elsewhere, self._uri)
            reason = f"it was at {elsewhere.uri}"
        _logger.info("loading %s into the catalogue %s: %s", self._uri, self.database.place, reason)
        since = None if elsewhere is None else elsewhere.first_version
        try:
            return reason if self._load_from(snapshot, since, found, elsewhere) else ""
        except CommitConflict:  # another process loaded it meanwhile
            return ""

    def _load_from(self, head: Snapshot, since: int | None, *expected: Known | None) -> bool:
        base = head if since is None else self._oldest(since, head)
        actions = read_version(self.log.store, base.version) or ()
        info = commit_info(actions)
        about = Known.of(base, name=self.name, uri=self._uri, commit_id=info.commitId if info else "")

        def work(connection: Connection, files: Iterable[pa.Table]) -> bool:
            if expected and not _are_there(connection, expected, about):
                return False
            load(connection, base, files, about=about, actions=actions)
            self._replay(connection, about, head.version)
            return True

        try:
            return self.database.write(lambda connection: work(connection, base.splits.passing()))
        except (Corrupt, NotFound) as error:
            _logger.warning("%s: a manifest is not usable, reading what replaces it: %s", self._uri, error)
            return self.database.write(lambda connection: work(connection, base.splits.tables()))

    def _oldest(self, since: int, head: Snapshot) -> Snapshot:
        """The snapshot of a version, or the oldest that is retained after it. What tags keep below is passed over."""
        wanted = max(since, first_version(self.log.store))
        try:
            return self.log.snapshot(version=min(wanted, head.version))
        except NotFound:  # it was collected meanwhile
            return head

    def _replay(self, connection: Connection, base: Known, until: int) -> None:
        at = base
        for version, actions in versions_after(self.log.store, base.head_version):
            if version > until:
                return
            after = apply(connection, at, version, actions)
            if after is None:
                raise CommitConflict(f"{self._uri}: version {version} does not follow in the catalogue; try again")
            at = after


def _is_commit(known: Known, actions: Sequence[Action]) -> bool:
    info = commit_info(actions)
    found = None if info is None else (info.commitId, info.timestamp)
    return found == (known.head_commit_id, known.head_timestamp_ms)


def _are_there(connection: Connection, expected: Iterable[Known | None], about: Known) -> bool:
    """Whether the catalogue has what was found of the table and its place, and nothing else."""
    there = sa.or_(TABLES.c.table_id == about.table_id, TABLES.c.uri == about.uri)
    return {each.table_id: each for each in every_known(connection, there)} == {
        each.table_id: each for each in expected if each is not None
    }


def _require_moved(known: Known, uri: str) -> None:
    """Raise `InvalidInput` where the table is still where the catalogue knows it: one of two places is a copy."""
    try:
        found = catalog_id(TransactionLog(open_table_store(known.uri)).snapshot())
    except NotFound:
        return
    if found == known.table_id:
        raise InvalidInput(
            f"{uri}: holds the table {known.table_id}, which the catalogue knows at {known.uri}, where it still is; "
            "one of them is a copy of all files, which no catalogue tells from the table. Make copies to keep with "
            f"`tidemark clone`; for this one instead run: tidemark catalog rebuild {uri} --url …",
            uri=uri,
        )


def _refreshed(head: Known, reason: str, versions: int) -> Refreshed:
    outcome: Outcome = "loaded" if reason else "refreshed" if versions else "current"
    return Refreshed(
        name=head.name,
        uri=head.uri,
        table_id=head.table_id,
        outcome=outcome,
        version=head.head_version,
        versions=versions,
        reason=reason,
    )
