"""A small table whose splits and segments are placeholders, for tests of references, removal and collection."""

from __future__ import annotations

from collections.abc import Sequence

from storage_core.base.clock import HOUR_MS
from storage_core.data.formats import keys
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, IndexSegment, Remove, RemoveIndexSegment
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import Committed, IfAbsent, ObjectStore
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.log_tables import INDEX, metadata


class SampleTable:
    """One table, its log, and the clock and IDs of both. Each upload is a few bytes under a real key."""

    def __init__(self, store: ObjectStore, clock: ManualClock, config: TableConfig) -> None:
        self.store = store
        self.clock = clock
        self.ids = SeededIds(1)
        self.log = TransactionLog(store, clock=clock, ids=self.ids)
        self.log.create(metadata(config))

    def upload_split(self) -> str:
        """Write the file of a split that nothing references yet, and return its key."""
        return self._upload(keys.split_key(None, windowed=False, split_id=self.ids.uuid()), b"a split")

    def upload_segment(self) -> str:
        """Write the file of an index segment that nothing references yet, and return its key."""
        return self._upload(keys.segment_key(INDEX.name, self.ids.uuid()), b"a segment")

    def append(self, splits: int = 1) -> list[str]:
        """Commit new splits and return their keys."""
        added = [self.upload_split() for _ in range(splits)]
        self.commit([self.add(key) for key in added])
        return added

    def replace(self, removed: Sequence[str], splits: int = 1) -> list[str]:
        """Commit new splits in place of others, and return the keys of the new splits."""
        added = [self.upload_split() for _ in range(splits)]
        self.commit([*(Remove(path=key, dataChange=False) for key in removed), *(self.add(key) for key in added)])
        return added

    def add(self, key: str) -> Add:
        """Return the action that adds this split."""
        return Add(path=key, size=7, modificationTime=self.clock.now_ms(), numRecords=1)

    def segment(self, key: str, covers: Sequence[str]) -> IndexSegment:
        """Return the action that adds this segment of the table's index."""
        return IndexSegment(
            index=INDEX.name,
            kind=INDEX.kind,
            path=key,
            covers=tuple(covers),
            size=9,
            xxh3="0" * 16,
            footerOffset=0,
            numRecords=len(covers),
        )

    def remove_segment(self, key: str) -> RemoveIndexSegment:
        """Return the action that removes this segment."""
        return RemoveIndexSegment(index=INDEX.name, path=key)

    def commit(self, actions: Sequence[Action]) -> Snapshot:
        """Commit the actions on the newest snapshot, one millisecond after the last commit. Return the new snapshot."""
        self.clock.now += 1
        return self.log.commit(self.log.snapshot(), actions, operation="TEST").snapshot

    def checkpoint(self) -> int:
        """Checkpoint the newest version and return it."""
        return self.log.checkpoint(self.log.snapshot()).version

    def superseded(self) -> Snapshot:
        """Return a superseded version. The version is older than a checkpoint, and its retention ended an hour ago."""
        old = self.append(2)
        target = self.log.snapshot()
        self.replace(old)
        self.checkpoint()
        self.append()
        self.checkpoint()
        self.clock.now += target.config.version_retention_ms + HOUR_MS
        return target

    def objects(self, prefix: str = "") -> set[str]:
        """Return the keys that exist."""
        return {info.key for info in self.store.list(prefix)}

    def log_versions(self, kind: keys.KeyKind) -> set[int]:
        """Return the versions that have an object of this kind in the log: a version file, or a state."""
        parsed = map(keys.parse, self.objects("_transaction_log/"))
        return {each.version for each in parsed if each and each.kind is kind and each.version is not None}

    def _upload(self, key: str, data: bytes) -> str:
        result = self.store.put(key, data, IfAbsent())
        assert isinstance(result, Committed), f"{key}: {result}"
        return key
