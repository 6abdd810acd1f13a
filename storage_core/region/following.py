"""The table as its writer knows it: as of when it was opened, and from each flush on as of then."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import TidemarkError
from storage_core.log.advance import advance
from storage_core.log.replay import open_head
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.records import RecordBuilder
from storage_core.rows.fold import record_schema
from storage_core.split.context import SplitContext, context_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What a writer goes by, of one snapshot."""

    snapshot: Snapshot
    builder: RecordBuilder
    schema: pa.Schema
    """That of records."""
    context: SplitContext

    @staticmethod
    def of(snapshot: Snapshot) -> Known:
        """Return what the snapshot says of a keyed table."""
        config = snapshot.config
        builder = RecordBuilder(
            snapshot.schema, config.primary_key, merged_maps=config.merged_maps, nonzero=config.nonzero_vectors
        )
        return Known(snapshot, builder, record_schema(snapshot.schema), context_of(snapshot))


@dataclass(slots=True)
class Following:
    """Follows the columns of a table. Writers of several regions share one; any thread may renew it."""

    store: ObjectStore | None
    clock: Clock
    known: Known
    _head: Snapshot = field(init=False)
    _seen_ms: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the snapshot."""
        self._head, self._seen_ms = self.known.snapshot, self.clock.now_ms()

    def renew(self) -> None:
        """Take the newest columns, or keep those known where the log cannot be read: the next flush looks again.

        One GET per version since, and one that finds none; after half the time that versions are retained those of
        opening the table, for the next version may be gone. Without a store nothing.
        """
        if self.store is None:
            return
        try:
            self._head, self._seen_ms = self._newest(self.store), self.clock.now_ms()
        except TidemarkError as error:
            _logger.warning("the columns of %s cannot be looked for, keeping those known: %s", self.store.uri, error)
            return
        if self._head.metadata.schemaString != self.known.snapshot.metadata.schemaString:
            self.known = Known.of(self._head)

    def _newest(self, store: ObjectStore) -> Snapshot:
        if self.clock.now_ms() - self._seen_ms > self._head.config.version_retention_ms // 2:
            return open_head(store)
        return advance(store, self._head) or self._head
