"""Objects that hold no rows but say something of them: bounds, row keys, expressions, keys of generations.

They speak of a split or a generation. Of one that is there a search says whether it holds rows. What is gone and was
named by the version on which the rows were forgotten, or before it, may have held some, and then they may say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

from storage_core.errors import Corrupt, NotFound
from storage_core.forget.judge import Judge
from storage_core.forget.search import AT_ONCE, HELD_BYTES, Found
from storage_core.forget.segments import holding_segments, sources
from storage_core.formats.avro_state import decode_entries
from storage_core.formats.iceberg_metadata import files_of
from storage_core.formats.keys import KeyKind, ParsedKey
from storage_core.gc.plan import read_plan
from storage_core.gc.retention import Retained
from storage_core.log.actions import Action, Add, CommitInfo, IndexSegment, Remove, Translation, Txn
from storage_core.log.advance import read_version
from storage_core.log.checkpoints.root import read_state
from storage_core.log.conflicts.requirements import FORGOTTEN, next_recorded_version
from storage_core.log.covered import members
from storage_core.log.encoding.codec import decode_version
from storage_core.log.interop.manifest_paths import key_of_manifest
from storage_core.log.published_delta import checkpointed_files, read_commit
from storage_core.log.published_iceberg import newest_metadata
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of, prefetch
from storage_core.region.manifest import read_version as read_region_manifest

OPERATION = "FORGET"
"""What its commits call themselves in the log."""


def is_forgetting(actions: Iterable[Action]) -> bool:
    """Return whether these are of a version that forgot rows."""
    return any(isinstance(each, CommitInfo) and each.operation == OPERATION for each in actions)


@dataclass(frozen=True, slots=True)
class Since:
    """The version that the last `FORGET` was planned on, None for never; `at_ms` it was recorded, else the head's time.

    `generations` are the last that it found merged, by region.
    """

    version: int | None
    at_ms: int
    generations: Mapping[str, int]

    @staticmethod
    def of(head: Snapshot) -> Since:
        """Return what the table's log has recorded. The requests of its transactions."""
        recorded = head.txns.every("tidemark")
        last = recorded.get(FORGOTTEN)
        own = {app: txn.version for app, txn in recorded.items() if app.startswith(f"{FORGOTTEN}:")}
        generations = {app.removeprefix(f"{FORGOTTEN}:"): version for app, version in own.items()}
        if last is None or last.version > head.version:  # of another log, in a clone of an earlier release
            return Since(None, head.timestamp, {})
        return Since(last.version, last.lastUpdated or head.timestamp, generations)

    def recorded(self, head: Snapshot, now_ms: int, regions: Iterable[str]) -> list[Txn]:
        """Return what a commit planned on `head` records: that version, and of these regions what it has merged."""
        merged = {region: head.merged_generations.get(region, 0) for region in regions}
        recorded = {region: head.txns.get(f"{FORGOTTEN}:{region}", 0) for region in merged}
        new = {region: last for region, last in merged.items() if last > recorded[region]}
        return [
            Txn(appId=FORGOTTEN, version=next_recorded_version(FORGOTTEN, head), lastUpdated=now_ms),
            *(Txn(appId=f"{FORGOTTEN}:{region}", version=last, lastUpdated=now_ms) for region, last in new.items()),
        ]


def may_have_held(split: str, version: int, found: Found, since: Since) -> bool:
    """Return whether a split that was added on a version held rows, for all that is known of it."""
    if found.has_split(split):
        return split in found.splits or split in found.unread
    return since.version is None or version <= since.version


def names_rows(store: ObjectStore, manifest: str, found: Found, since: Since) -> bool:
    """Return whether a manifest has an entry of a split that may have held rows. One GET."""
    entries = decode_entries(store.get(manifest).data, manifest)
    added = zip(entries.column("path").to_pylist(), entries.column("addedAtVersion").to_pylist(), strict=True)
    return any(may_have_held(path, version or 0, found, since) for path, version in added)


@dataclass(frozen=True, eq=False)
class MetadataSearch:
    """Looks through what speaks of the objects that were found, in the versions that are retained."""

    store: ObjectStore
    head: Snapshot
    retained: Retained
    judge: Judge
    found: Found
    since: Since

    def holding(self) -> Iterator[str]:
        """Yield the keys of metadata and segments that may hold values of rows.

        One GET per version file, manifest, JSON checkpoint and its parts, region manifest and registry there is,
        several at a time. Raises what a read raises.
        """
        live = holding_segments(self.head, self.found, strict=self.since.version is None)
        looks = {
            KeyKind.VERSION: self._of_version,
            KeyKind.MANIFEST: self._of_manifest,
            KeyKind.STATE: self._of_state,
            KeyKind.GC_CANDIDATES: self._of_plan,
            KeyKind.JSON_CHECKPOINT: self._of_checkpoint,
            KeyKind.JSON_CHECKPOINT_PART: self._of_checkpoint,
            KeyKind.REGION_MANIFEST: self._of_region,
            KeyKind.REGION_REGISTRY: self._of_registry,
            KeyKind.DELTA_COMMIT: self._of_delta,
            KeyKind.DELTA_CHECKPOINT: self._of_delta,
            KeyKind.ICEBERG_MANIFEST: self._of_iceberg,
        }

        def looked(each: ParsedKey) -> tuple[str, bool]:
            if each.kind is KeyKind.SEGMENT:
                return each.key, each.key in live if each.key in self.head.segments else self._of_segment(each.key)
            try:
                return each.key, looks[each.kind](each)
            except NotFound:  # collected since it was listed
                return each.key, False

        every, size = [*self.found.of_kind(*looks, KeyKind.SEGMENT)], self.found.size
        _ = self.versions, self._actions, self._forgot, self._root  # which threads would make at the same time
        with closing(prefetch(looked, every, AT_ONCE, weight=lambda each: size(each.key), most=HELD_BYTES)) as answers:
            yield from (key for key, holds in answers if holds)

    def _speaks_of(self, split: str, version: int) -> bool:
        """Whether a split that was added on a version may have held rows."""
        return may_have_held(split, version, self.found, self.since)

    def _of_version(self, each: ParsedKey) -> bool:
        version = each.version or 0
        actions = self.versions.get(version, ())
        if self.head.config.partition_by and any(self._leaves(path, version) for path in _named(actions)):
            return True
        return any(isinstance(action, Add) and self._speaks_of(action.path, version) for action in actions)

    def _leaves(self, split: str, version: int) -> bool:
        """As `_speaks_of`, of a version that names a split of a partition: its folder says what the rows were."""
        return self._speaks_of(split, version if version > self._forgot else 0)

    @cached_property
    def _forgot(self) -> int:
        """The version that forgot last."""
        forgot = (version for version, actions in self.versions.items() if is_forgetting(actions))
        return max(forgot, default=self.since.version or 0)

    def _of_state(self, each: ParsedKey) -> bool:
        """Whether it names a split in the folder of a partition, or has the bounds of a manifest that names one."""
        if not self.head.config.partition_by:
            return False
        state = read_state(self.store, each.version or 0)
        if any(self._leaves(path, state.state_version) for path in state.tombstones):
            return True
        keys = {key_of_manifest(info.path, state.state_version) for info in state.manifests}
        return any(self._of_manifest(self.found.parsed[key]) for key in sorted(keys & self.found.parsed.keys()))

    def _of_plan(self, _: ParsedKey) -> bool:
        named = read_plan(self.store).candidates if self.head.config.partition_by else ()
        return not self.found.splits.isdisjoint(named)

    def _of_manifest(self, each: ParsedKey) -> bool:
        return names_rows(self.store, each.key, self.found, self.since)

    def _of_checkpoint(self, each: ParsedKey) -> bool:
        data = self.store.get(each.key).data
        if b'"checkpointId"' in data[:4096]:  # a list of parts
            return False
        adds = [action for action in decode_version(data, each.key) if isinstance(action, Add)]
        return any(self._speaks_of(add.path, each.version or 0) for add in adds)

    def _of_delta(self, each: ParsedKey) -> bool:
        """Of a commit, which brings splits of versions after the one that the commit before shows, or a checkpoint."""
        commit = read_commit(self.store, each.version or 0)
        if commit is None or commit.shown is None:
            return True
        is_parted = bool(self.head.config.partition_by)
        version, keys = commit.shown.version, [*commit.added, *(commit.removed if is_parted else ())]
        if each.kind is KeyKind.DELTA_CHECKPOINT:
            listed = checkpointed_files(self.store, commit.version)
            keys = [] if listed is None else [*listed.files]
        elif commit.shown.after is not None:
            version = commit.shown.after + 1
        speaks = self._leaves if is_parted else self._speaks_of
        return any(speaks(key, version) for key in keys)

    def _of_iceberg(self, each: ParsedKey) -> bool:
        """Of a manifest: it has bounds of the splits that it names, but for those that it says are gone."""
        is_parted = bool(self.head.config.partition_by)
        try:
            files = files_of(self.store.get(each.key).data, self._root, each.key)
        except Corrupt:  # or of where the table was before
            return True
        for file in files:
            if file.is_live and may_have_held(file.key, 0, self.found, self.since):
                return True
            if is_parted and self._leaves(file.key, file.version):
                return True
        return False

    @cached_property
    def _root(self) -> str:
        """Where the table is, as the Iceberg mirror has it."""
        newest = newest_metadata(self.store) if [*self.found.of_kind(KeyKind.ICEBERG_MANIFEST)] else None
        return "" if newest is None else newest.metadata.root

    def _of_region(self, each: ParsedKey) -> bool:
        region = each.region or ""
        known = self.since.generations.get(region)
        for flushed in read_region_manifest(self.store, region, each.version or 0).flushed_generations:
            at = (region, flushed.path)
            if at in self.found.directories:
                return True
            if at not in self.found.generations and (known is None or flushed.generation <= known):
                return True
        return False

    def _of_registry(self, each: ParsedKey) -> bool:
        return self.judge.text(self.store.get(each.key).data.decode(errors="replace")) is True

    def _of_segment(self, key: str) -> bool:
        """Whether a segment that the newest version does not name may hold rows."""
        action = self._actions.get(key)
        if action is not None:
            told = [*sources(action, self.found)]
            if True in told or None not in told:
                return True in told
        if self.since.version is None:
            return True
        removal = self.retained.removals.get(key)
        if removal is not None:  # one that outlived the last time was clean then
            return removal.version <= self.since.version or is_forgetting(self.versions.get(removal.version, ()))
        written_ms = self.found.objects[key].last_modified_ms
        return written_ms <= self.since.at_ms + self.head.config.gc_horizon_ms  # of a job that began before

    @cached_property
    def versions(self) -> Mapping[int, list[Action]]:
        """The actions of the version files there are. One GET each, once, several at a time."""
        numbers = [each.version or 0 for each in self.found.of_kind(KeyKind.VERSION)]
        read = all_of(lambda number: read_version(self.store, number), numbers, AT_ONCE)
        return {number: actions for number, actions in zip(numbers, read, strict=True) if actions is not None}

    @cached_property
    def _actions(self) -> dict[str, IndexSegment]:
        named = [action for actions in self.versions.values() for action in actions if isinstance(action, IndexSegment)]
        return {each.path: each for each in (*self.retained.base.segments.values(), *named)}


def _named(actions: Iterable[Action]) -> Iterator[str]:
    """The splits that actions name which do not add them."""
    for action in actions:
        match action:
            case Remove():
                yield action.path
            case IndexSegment():
                yield from (path for each in members(action) for path in (each.split, *(each.origins or ())))
            case Translation():
                yield from (*action.inputs, *action.outputs)
            case _:
                pass
