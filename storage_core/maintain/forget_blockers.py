"""Find the metadata that may describe forgotten rows, and explain why an object with such rows still exists.

Metadata contains no rows. But bounds, row keys, expressions and keys of generations contain values of rows. Metadata
refers to a split or a generation. If the split or generation exists, the search determines whether it contains the
rows. A deleted split or generation may also have contained some of the rows. A deleted object may have contained the
rows if the last `FORGET` version or an earlier version references the object. Metadata about this split or generation
may then contain values of these rows.

Index segments contain words, values or embeddings of rows (decision 0030). A segment contains the rows of its source
splits, even if these rows were moved or deleted later. For an existing split, the search determines whether it had a
row to forget. For a deleted split, the search cannot determine whether the split had a row to forget. A segment of a
deleted split is clean only if all rows of the segment are in live splits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from storage_core.base.errors import Corrupt, NotFound
from storage_core.base.text import counted
from storage_core.data.formats.avro_state import decode_entries
from storage_core.data.formats.documents import Tag
from storage_core.data.formats.keys import REGIONS_PREFIX, ParsedKey
from storage_core.data.formats.kinds import (
    CHECKPOINTS,
    KINDS,
    PARTS_OF_CHECKPOINTS,
    Keeper,
    KeyKind,
    Reason,
    Rows,
    with_rows,
)
from storage_core.data.formats.mirrors import files_of
from storage_core.index.segments import Coverage, compute_coverage
from storage_core.log.actions import Action, Add, CommitInfo, IndexSegment, MergedGenerations, Remove, Translation, Txn
from storage_core.log.checkpoint import key_of_manifest, read_state
from storage_core.log.checkpoint import named_keys as keys_of_checkpoint
from storage_core.log.codec import decode_version
from storage_core.log.conflicts import FORGOTTEN, next_recorded_version
from storage_core.log.coverage import members
from storage_core.log.listing import Checkpointed
from storage_core.log.log import TransactionLog, read_tags
from storage_core.log.mirror_metadata import checkpointed_files, newest_metadata, read_commit
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.versions import read_version
from storage_core.maintain.collect import Marked, read_plan
from storage_core.maintain.forget_report import Held, KeptBy
from storage_core.maintain.forget_search import (
    AT_ONCE,
    Directory,
    HoldingObjects,
    RowCondition,
    directory_of,
    read_concurrently,
)
from storage_core.maintain.roots import Retained
from storage_core.maintain.table_objects import keys_of, named_by
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of
from storage_core.write.region.manifest import read_version as read_region_manifest

_NEARLY_ALL: Final = 1 - 1e-9  # the sum of shares has rounding errors


OPERATION = "FORGET"
"""The operation name of these commits in the log."""


def holding_segments(head: Snapshot, found: HoldingObjects, *, strict: bool) -> dict[str, IndexSegment]:
    """Return the live segments that contain the rows, by path. Makes requests for manifests only.

    Args:
        head: Version to check.
        found: Result of the search.
        strict: True also returns segments with an unknown answer. These segments were built from deleted splits, and
            some of their rows are not in a live split.
    """
    covered = {each.name: compute_coverage(head, each) for each in head.config.indexes}
    return {
        path: segment
        for path, segment in head.segments.items()
        if _holds(segment, covered.get(segment.index), found, strict=strict)
    }


def _holds(segment: IndexSegment, covered: Coverage | None, found: HoldingObjects, *, strict: bool) -> bool:
    answers = {} if covered is None else covered.answers
    if any(segment.path in answers.get(split, ()) for split in found.splits):
        return True
    told = [*sources(segment, found)]
    if True in told:
        return True
    if None not in told or not strict:
        return False
    live = 0.0 if covered is None else covered.live_rows.get(segment.path, 0.0)
    return live < segment.numRecords * _NEARLY_ALL


def sources(segment: IndexSegment, found: HoldingObjects) -> Iterator[bool | None]:
    """Yield one result for each source split or generation of the segment: whether the source contains the rows.

    None means that the source is deleted.
    """
    named = [each.split for each in members(segment)]
    if not named:
        yield None
    for path in named:
        yield _of_generation(path, found) if path.startswith(REGIONS_PREFIX) else _of_split(path, found)


def _of_split(path: str, found: HoldingObjects) -> bool | None:
    return path in found.splits if found.has_split(path) and path not in found.unread else None


def _of_generation(path: str, found: HoldingObjects) -> bool | None:
    region, directory, *rest = path.removeprefix(REGIONS_PREFIX).split("/")
    is_there = (region, directory) in found.generations
    return None if rest or not is_there else (region, directory) in found.directories


def is_forgetting(actions: Iterable[Action]) -> bool:
    """Return whether these are the actions of a version that forgot rows."""
    return any(isinstance(each, CommitInfo) and each.operation == OPERATION for each in actions)


@dataclass(frozen=True, slots=True)
class Since:
    """The last recorded `FORGET` commit.

    - `version`: the version on which the `FORGET` commit was planned. None means that there was no `FORGET` commit.
    - `at_ms`: the time of the record in ms. If there is no record, `at_ms` is the time of the head.
    - `generations`: by region, the last merged generation at the time of the commit.
    """

    version: int | None
    at_ms: int
    generations: Mapping[str, int]

    @staticmethod
    def of(head: Snapshot) -> Since:
        """Return the record in the table's log. Makes the requests of the table's transactions."""
        recorded = head.txns.every("tidemark")
        last = recorded.get(FORGOTTEN)
        own = {app: txn.version for app, txn in recorded.items() if app.startswith(f"{FORGOTTEN}:")}
        generations = {app.removeprefix(f"{FORGOTTEN}:"): version for app, version in own.items()}
        if last is None or last.version > head.version:  # an old clone has copied the `FORGET` record of its source
            return Since(None, head.timestamp, {})
        return Since(last.version, last.lastUpdated or head.timestamp, generations)

    def recorded(self, head: Snapshot, now_ms: int, regions: Iterable[str]) -> list[Txn]:
        """Return the transactions to commit: one for `head`, and one for the merged generations of each region."""
        merged = {region: head.merged_generations.get(region, 0) for region in regions}
        recorded = {region: head.txns.get(f"{FORGOTTEN}:{region}", 0) for region in merged}
        new = {region: last for region, last in merged.items() if last > recorded[region]}
        return [
            Txn(appId=FORGOTTEN, version=next_recorded_version(FORGOTTEN, head), lastUpdated=now_ms),
            *(Txn(appId=f"{FORGOTTEN}:{region}", version=last, lastUpdated=now_ms) for region, last in new.items()),
        ]


def may_have_held(split: str, version: int, found: HoldingObjects, since: Since) -> bool:
    """Return whether a split that was added in this version may have contained the rows."""
    if found.has_split(split):
        return split in found.splits or split in found.unread
    return since.version is None or version <= since.version


def names_rows(store: ObjectStore, manifest: str, found: HoldingObjects, since: Since) -> bool:
    """Return whether a manifest has an entry of a split that may have contained the rows. One GET."""
    entries = decode_entries(store.get(manifest).data, manifest)
    added = zip(entries.column("path").to_pylist(), entries.column("addedAtVersion").to_pylist(), strict=True)
    return any(may_have_held(path, version or 0, found, since) for path, version in added)


@dataclass(frozen=True, eq=False)
class MetadataSearch:
    """The search for version files, states and other metadata objects that contain values of the forgotten rows."""

    store: ObjectStore
    head: Snapshot
    retained: Retained
    judge: RowCondition
    found: HoldingObjects
    since: Since

    def holding(self) -> Iterator[str]:
        """Yield the keys of metadata and segments that may contain values of rows. Raises the errors of the reads.

        Cost:
            One GET per existing version file, manifest, JSON checkpoint and its parts, region manifest and registry,
            several at a time.
        """
        live = holding_segments(self.head, self.found, strict=self.since.version is None)
        looks: Mapping[KeyKind, Callable[[ParsedKey], bool]] = {
            KeyKind.SEGMENT: lambda each: each.key in live or self._of_older_segment(each.key),
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

        every, size = self.found.listing.of(*with_rows(Rows.VALUES)), self.found.listing.size
        _ = self.versions, self._actions, self._forgot, self._root  # read the properties before several threads start
        for each, holds in read_concurrently(lambda each: looks[each.kind](each), every, lambda each: size(each.key)):
            if isinstance(holds, Exception) and not isinstance(holds, NotFound):  # `NotFound`: already deleted
                raise holds
            if holds is True:
                yield each.key

    def _speaks_of(self, split: str, version: int) -> bool:
        """Return whether a split that was added in this version may have contained the rows."""
        return may_have_held(split, version, self.found, self.since)

    def _of_version(self, each: ParsedKey) -> bool:
        version = each.version or 0
        actions = self.versions.get(version, ())
        if self.head.config.partition_by and any(self._leaves(path, version) for path in _named(actions)):
            return True
        return any(isinstance(action, Add) and self._speaks_of(action.path, version) for action in actions)

    def _leaves(self, split: str, version: int) -> bool:
        """Return the answer of `_speaks_of` for a split in a partition folder.

        The version `version` references the split.

        The name of the folder contains values of the rows in the split.
        """
        return self._speaks_of(split, version if version > self._forgot else 0)

    @cached_property
    def _forgot(self) -> int:
        """The version of the last `FORGET`."""
        forgot = (version for version, actions in self.versions.items() if is_forgetting(actions))
        return max(forgot, default=self.since.version or 0)

    def _of_state(self, each: ParsedKey) -> bool:
        """Return whether a folder name or a bound of a split in a state contains values of forgotten rows.

        Only tables with partitions are checked.
        """
        if not self.head.config.partition_by:
            return False
        state = read_state(self.store, each.version or 0)
        if any(self._leaves(path, state.state_version) for path in state.tombstones):
            return True
        keys = {key_of_manifest(info.path, state.state_version) for info in state.manifests}
        return any(self._of_manifest(each) for each in self.found.listing.of(KeyKind.MANIFEST) if each.key in keys)

    def _of_plan(self, _: ParsedKey) -> bool:
        named = read_plan(self.store).candidates if self.head.config.partition_by else ()
        return not self.found.splits.isdisjoint(named)

    def _of_manifest(self, each: ParsedKey) -> bool:
        return names_rows(self.store, each.key, self.found, self.since)

    def _of_checkpoint(self, each: ParsedKey) -> bool:
        data = self.store.get(each.key).data
        if b'"checkpointId"' in data[:4096]:  # the object lists the parts of a checkpoint
            return False
        adds = [action for action in decode_version(data, each.key) if isinstance(action, Add)]
        return any(self._speaks_of(add.path, each.version or 0) for add in adds)

    def _of_delta(self, each: ParsedKey) -> bool:
        """Return whether a Delta commit or checkpoint references a split that may have contained the rows.

        A commit adds splits of the versions after the previous published version.
        """
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
        """Return whether an Iceberg manifest references a live split that may have contained the rows.

        A manifest contains bounds of the named splits, except for splits that are marked as deleted.
        """
        is_parted = bool(self.head.config.partition_by)
        try:
            files = files_of(self.store.get(each.key).data, self._root, each.key)
        except Corrupt:  # damage, or the manifest is from an earlier location of the table
            return True
        for file in files:
            if file.is_live and may_have_held(file.key, 0, self.found, self.since):
                return True
            if is_parted and self._leaves(file.key, file.version):
                return True
        return False

    @cached_property
    def _root(self) -> str:
        """The location of the table as recorded in the Iceberg mirror."""
        newest = newest_metadata(self.store) if self.found.listing.of(KeyKind.ICEBERG_MANIFEST) else None
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

    def _of_older_segment(self, key: str) -> bool:
        """Return whether a segment outside the newest version may contain the rows."""
        if key in self.head.segments:
            return False
        action = self._actions.get(key)
        if action is not None:
            told = [*sources(action, self.found)]
            if True in told or None not in told:
                return True in told
        if self.since.version is None:
            return True
        removal = self.retained.removals.get(key)
        if removal is not None:  # The last `FORGET` left this segment only if the segment contained none of the rows.
            return removal.version <= self.since.version or is_forgetting(self.versions.get(removal.version, ()))
        written_ms = self.found.listing.objects[key].last_modified_ms
        return written_ms <= self.since.at_ms + self.head.config.gc_horizon_ms  # the segment may be of an earlier job

    @cached_property
    def versions(self) -> Mapping[int, list[Action]]:
        """The actions of the existing version files. The first use makes one GET per file, several at a time."""
        numbers = [each.version or 0 for each in self.found.listing.of(KeyKind.VERSION)]
        read = all_of(lambda number: read_version(self.store, number), numbers, AT_ONCE)
        return {number: actions for number, actions in zip(numbers, read, strict=True) if actions is not None}

    @cached_property
    def _actions(self) -> dict[str, IndexSegment]:
        named = [action for actions in self.versions.values() for action in actions if isinstance(action, IndexSegment)]
        return {each.path: each for each in (*self.retained.base.segments.values(), *named)}


def _named(actions: Iterable[Action]) -> Iterator[str]:
    """Yield the splits that the actions reference but do not add."""
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


_AGAIN: Final = "the newest version uses the object. Forget again"
_PUBLISH: Final = "a mirror uses the object. Publish the newest version, and wait for the retention of versions"
_MERGE: Final = "the rows in a region are not merged yet. Forget again, or merge"
_TABLE: Final[Mapping[KeyKind, str]] = {
    KeyKind.QUARANTINE: "the rows are in quarantine. Forget again",
    KeyKind.REGION_REGISTRY: "the name of a region contains the value. Change the regions of the table",
}


@dataclass(frozen=True, eq=False)
class BlockerSearch:
    """Search for the reasons that keep objects of a table at one point in time.

    `versions` are the actions of the existing version files.
    """

    log: TransactionLog
    marked: Marked
    found: HoldingObjects
    versions: Mapping[int, Sequence[Action]]
    now_ms: int

    def of(self, each: ParsedKey) -> Iterator[Held]:
        """Yield the reasons why an object is kept. There is at least one reason."""
        told = [*self._of(each)]
        yield from told or [self._held(each, KeptBy.TABLE, _AGAIN)]

    def _of(self, each: ParsedKey) -> Iterator[Held]:
        if each.key in self.found.unread:
            yield self._held(each, KeptBy.NOT_READ, self.found.unread[each.key])
        if each.key in self._unreachable:
            why = f"no version needs the object ({self._unreachable[each.key]}). The collector deletes the object"
            yield self._held(each, KeptBy.COLLECTOR, why, until_ms=self._collected_ms(each.key))
            return
        kind = KINDS[each.kind]
        if each.kind is KeyKind.VERSION:
            yield self._numbered(each, each.version or 0)
        elif each.kind in CHECKPOINTS | PARTS_OF_CHECKPOINTS:
            yield from self._of_checkpoints(each)
        elif kind.keeper is Keeper.REGION:
            yield self._of_region(each)
        elif kind.unneeded is Reason.OLD_PUBLISHED:
            yield self._held(each, KeptBy.VERSION, _PUBLISH)
        elif each.kind is KeyKind.GC_CANDIDATES:
            last = max(self._collected_ms(key) for key in self.found.splits & self._plan.keys())
            why = "the object contains names of partition folders until the collector has deleted their splits"
            yield self._held(each, KeptBy.COLLECTOR, why, until_ms=last + self._horizon_ms)
        elif each.kind in _TABLE:
            yield self._held(each, KeptBy.TABLE, _TABLE[each.kind])
        else:
            yield from self._of_versions(each)

    def _of_versions(self, each: ParsedKey) -> Iterator[Held]:
        """Yield the reasons that keep a split or a segment."""
        yield from self._tagged(each, lambda tag: self._tag_keys[tag])
        if each.key in keys_of(self.marked.roots.retained.head):
            yield self._held(each, KeptBy.TABLE, _AGAIN)
        elif each.key in self._retained_keys:
            removal = self.marked.roots.retained.removals.get(each.key)
            yield self._by_version(each, None if removal is None else removal.version)
        elif each.key in self.marked.roots.published:
            yield self._held(each, KeptBy.VERSION, _PUBLISH)
        elif each.kind is KeyKind.SEGMENT and each.key in self._unmerged:
            yield self._held(each, KeptBy.TABLE, _MERGE)

    def _of_checkpoints(self, each: ParsedKey) -> Iterator[Held]:
        naming = [one for one in self._checkpoints if each.key == one.key or each.key in self._named_by[one.key]]
        yield from self._tagged(each, lambda tag: {each.key} if tag.version in {one.version for one in naming} else ())
        versions = {one.version for one in naming if self._is_retained(one)}
        if versions:
            yield self._numbered(each, max(versions))
        going = [self._collected_ms(one.key) for one in naming if one.key in self._unreachable]
        if going and not versions:
            until_ms = max(going) + self._horizon_ms
            yield self._held(
                each,
                KeptBy.COLLECTOR,
                "the collector must first delete a state that uses the object",
                until_ms=until_ms,
            )

    def _is_retained(self, checkpoint: Checkpointed) -> bool:
        """Return whether a checkpoint would be retained even without tags."""
        retained = self.marked.roots.retained
        newest = sorted({one.version for one in self._checkpoints})[-retained.head.config.retained_states :]
        return checkpoint.version >= retained.base.version or checkpoint.version in newest

    def _numbered(self, each: ParsedKey, version: int) -> Held:
        """Return the reason why the version file or the state of a version is kept."""
        kept = self.marked.roots.retained.head.config.retained_states
        later = len({one.version for one in self._checkpoints if one.version > version})
        if later < kept:
            more = kept - later
            return self._held(
                each,
                KeptBy.VERSION,
                f"one of the {kept} newest states needs the object. Forget again after {counted(more, 'more state')}",
            )
        return self._by_version(each, version + 1)

    def _of_region(self, each: ParsedKey) -> Held:
        directories = [*self._directories(each)]
        merged = [self._merging_version(at) for at in directories]
        if None in merged:
            return self._held(each, KeptBy.TABLE, _MERGE)
        ended = max((version for version in merged if version is not None), default=None)
        if each.kind is KeyKind.REGION_MANIFEST:
            return self._listing(each, ended)
        if ended is None:
            return self._held(each, KeptBy.TABLE, "no generation contains this entry. Forget again, or merge")
        return self._by_version(each, ended)

    def _listing(self, each: ParsedKey, ended: int | None) -> Held:
        """Return the reason why a region manifest is kept.

        A manifest lists generations until they are deleted. After this, the manifest is kept as long as versions.
        """
        held = self._by_version(each, ended)
        gone_ms = self.now_ms if ended is None else held.until_ms
        if gone_ms is None:
            return held
        old_ms = self.found.listing.objects[each.key].last_modified_ms + self._retention_ms
        until_ms = max(gone_ms, old_ms) + self._horizon_ms
        return self._held(
            each, KeptBy.VERSION, "the object lists a generation that may have had the rows", until_ms=until_ms
        )

    def _directories(self, each: ParsedKey) -> Iterator[Directory]:
        region = each.region or ""
        if each.kind is KeyKind.GENERATION_FILE:
            yield directory_of(each)
        elif each.kind is KeyKind.WAL_ENTRY:
            for at, found in self.found.generations.items():
                if at[0] == region and each.entry in found.entries:
                    yield at
        else:
            yield from (at for at in self.found.directories if at[0] == region)

    def _merging_version(self, at: Directory) -> int | None:
        """Return the version that merged a generation, or None if no version has merged it."""
        found = self.found.generations.get(at)
        number = 0 if found is None else found.generation
        head = self.marked.roots.retained.head
        if number > head.merged_generations.get(at[0], 0):
            return None
        marks = (
            (version, action)
            for version in sorted(self.versions)
            for action in self.versions[version]
            if isinstance(action, MergedGenerations)
        )
        known = [version for version, each in marks if each.region == at[0] and each.generation >= number]
        return min(known, default=self.marked.roots.retained.base.version)

    def _tagged(self, each: ParsedKey, keys: Callable[[Tag], Collection[str]]) -> Iterator[Held]:
        for tag in self._tags:
            if each.key in keys(tag):
                why = f"the tag {tag.name!r} keeps version {tag.version}. Remove the tag, or wait until it expires"
                yield self._held(each, KeptBy.TAG, why, until_ms=tag.expires_at_ms, tag=tag.name, version=tag.version)

    def _by_version(self, each: ParsedKey, ended: int | None) -> Held:
        """Return the reason why an object is still kept. Versions before `ended` need the object.

        The object is kept until the oldest retained version is `ended` or a later version.
        """
        later = [one.version for one in self._checkpoints if ended is not None and one.version >= ended]
        shown = None if ended is None else ended - 1
        if not later:
            return self._held(each, KeptBy.VERSION, "no later version has a state. Forget again", version=shown)
        until_ms = self._time_of(min(later)) + self._retention_ms + self._horizon_ms
        if each.kind in PARTS_OF_CHECKPOINTS:
            until_ms += self._horizon_ms  # A manifest is unreferenced only after its states are deleted.
        why = f"retained versions up to {shown} use the object"
        return self._held(each, KeptBy.VERSION, why, until_ms=until_ms, version=shown)

    def _time_of(self, version: int) -> int:
        actions = self.versions.get(version)
        return self.now_ms if actions is None else commit_timestamp(actions, self.now_ms)

    def _collected_ms(self, key: str) -> int:
        known = self._plan.get(key)
        return (self.now_ms if known is None else known) + self._horizon_ms

    def _held(
        self,
        each: ParsedKey,
        by: KeptBy,
        why: str,
        *,
        until_ms: int | None = None,
        tag: str | None = None,
        version: int | None = None,
    ) -> Held:
        uri = self.log.store.uri
        return Held(
            store=uri, key=each.key, kind=str(each.kind), by=by, why=why, until_ms=until_ms, tag=tag, version=version
        )

    @property
    def _retention_ms(self) -> int:
        return self.marked.roots.retained.head.config.version_retention_ms

    @property
    def _horizon_ms(self) -> int:
        return self.marked.roots.retained.head.config.gc_horizon_ms

    @cached_property
    def _unreachable(self) -> Mapping[str, str]:
        return {each.key: str(each.reason) for each in self.marked.unreachable}

    @cached_property
    def _plan(self) -> Mapping[str, int]:
        return {key: each.first_seen_ms for key, each in read_plan(self.log.store).candidates.items()}

    @cached_property
    def _tags(self) -> Sequence[Tag]:
        return read_tags(self.log.store).live(self.now_ms)

    @cached_property
    def _tag_keys(self) -> Mapping[Tag, frozenset[str]]:
        return {tag: keys_of(self.log.snapshot(version=tag.version)) for tag in self._tags}

    @cached_property
    def _unmerged(self) -> frozenset[str]:
        return frozenset(key for each in self.marked.roots.regions.values() for key in each.segments)

    @cached_property
    def _retained_keys(self) -> frozenset[str]:
        base = self.marked.roots.retained.base
        later = (actions for version, actions in self.versions.items() if version > base.version)
        return keys_of(base).union(*map(named_by, later))

    @cached_property
    def _checkpoints(self) -> Sequence[Checkpointed]:
        return self.found.listing.checkpoints()

    @cached_property
    def _named_by(self) -> Mapping[str, frozenset[str]]:
        """The keys that each checkpoint references. One GET per checkpoint, several at a time."""

        def named(checkpoint: Checkpointed) -> frozenset[str]:
            try:
                return frozenset(keys_of_checkpoint(self.log.store, checkpoint))
            except NotFound:  # the collector deleted the object after the listing
                return frozenset()

        keys = [each.key for each in self._checkpoints]
        return dict(zip(keys, all_of(named, self._checkpoints, AT_ONCE), strict=True))
