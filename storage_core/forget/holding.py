"""Why an object that holds rows is still there, and until when: what the collector knows of it, said of one object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from storage_core.errors import NotFound
from storage_core.forget.memory import Directory
from storage_core.forget.report import Held, KeptBy
from storage_core.forget.search import AT_ONCE, Found, directory_of
from storage_core.formats.keys import KeyKind, ParsedKey
from storage_core.formats.tags import Tag
from storage_core.gc.mark import Marked
from storage_core.gc.named_keys import named_keys
from storage_core.gc.plan import read_plan
from storage_core.gc.retention import snapshot_keys
from storage_core.log.actions import Action, MergedGenerations
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.root import named_keys as keys_of_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import commit_timestamp
from storage_core.log.tags import read_tags
from storage_core.objectstore.prefetch import all_of

_AGAIN: Final = "the newest version has it: forget again"
_PUBLISH: Final = "a mirror names it: publish the newest, and wait as long as versions are retained"
_MERGE: Final = "a region has not merged it: forget again, or merge"


@dataclass(frozen=True, eq=False)
class Holders:
    """Tells what keeps objects of a table at one moment. `versions` are the actions of the version files there are."""

    log: TransactionLog
    marked: Marked
    found: Found
    versions: Mapping[int, Sequence[Action]]
    now_ms: int

    def of(self, each: ParsedKey) -> Iterator[Held]:
        """Yield what keeps an object, one by one; at least one."""
        told = [*self._of(each)]
        yield from told or [self._held(each, KeptBy.TABLE, _AGAIN)]

    def _of(self, each: ParsedKey) -> Iterator[Held]:
        if each.key in self.found.unread:
            yield self._held(each, KeptBy.NOT_READ, self.found.unread[each.key])
        if each.key in self._unreachable:
            why = f"nothing needs it ({self._unreachable[each.key]}): the collector takes it"
            yield self._held(each, KeptBy.COLLECTOR, why, until_ms=self._collected_ms(each.key))
            return
        match each.kind:
            case KeyKind.VERSION:
                yield self._numbered(each, each.version or 0)
            case KeyKind.STATE | KeyKind.MANIFEST | KeyKind.JSON_CHECKPOINT | KeyKind.JSON_CHECKPOINT_PART:
                yield from self._of_checkpoints(each)
            case KeyKind.WAL_ENTRY | KeyKind.GENERATION_FILE | KeyKind.REGION_MANIFEST:
                yield self._of_region(each)
            case KeyKind.GC_CANDIDATES:
                last = max(self._collected_ms(key) for key in self.found.splits & self._plan.keys())
                why = "it names splits in the folder of their partition until the collector has taken them"
                yield self._held(each, KeptBy.COLLECTOR, why, until_ms=last + self._horizon_ms)
            case KeyKind.QUARANTINE:
                yield self._held(each, KeptBy.TABLE, "it is in quarantine: forget again")
            case KeyKind.DELTA_COMMIT | KeyKind.DELTA_CHECKPOINT | KeyKind.ICEBERG_MANIFEST:
                yield self._held(each, KeptBy.VERSION, _PUBLISH)
            case KeyKind.REGION_REGISTRY:
                yield self._held(each, KeptBy.TABLE, "it names the region of a value: change the regions of the table")
            case _:
                yield from self._of_versions(each)

    def _of_versions(self, each: ParsedKey) -> Iterator[Held]:
        """Of a split or segment."""
        yield from self._tagged(each, lambda tag: self._tag_keys[tag])
        if each.key in snapshot_keys(self.marked.roots.retained.head):
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
                each, KeptBy.COLLECTOR, "a state names it that the collector takes first", until_ms=until_ms
            )

    def _is_retained(self, checkpoint: Checkpointed) -> bool:
        """Whether a checkpoint is kept by more than tags."""
        retained = self.marked.roots.retained
        newest = sorted({one.version for one in self._checkpoints})[-retained.head.config.retained_states :]
        return checkpoint.version >= retained.base.version or checkpoint.version in newest

    def _numbered(self, each: ParsedKey, version: int) -> Held:
        """Of the version file or the state of a version."""
        kept = self.marked.roots.retained.head.config.retained_states
        later = len({one.version for one in self._checkpoints if one.version > version})
        if later < kept:
            more = kept - later
            return self._held(
                each, KeptBy.VERSION, f"one of the {kept} newest states needs it: forget again ({more} more)"
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
            return self._held(each, KeptBy.TABLE, "no generation names this entry: forget again, or merge")
        return self._by_version(each, ended)

    def _listing(self, each: ParsedKey, ended: int | None) -> Held:
        """Of a region manifest, which lists generations until they are gone, and then is as old as versions get."""
        held = self._by_version(each, ended)
        gone_ms = self.now_ms if ended is None else held.until_ms
        if gone_ms is None:
            return held
        old_ms = self.found.objects[each.key].last_modified_ms + self._retention_ms
        until_ms = max(gone_ms, old_ms) + self._horizon_ms
        return self._held(each, KeptBy.VERSION, "it lists a generation that may have held rows", until_ms=until_ms)

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
        """The version that merged a generation; None where none has."""
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
                why = f"the tag {tag.name!r} keeps version {tag.version}: remove the tag, or wait until it expires"
                yield self._held(each, KeptBy.TAG, why, until_ms=tag.expires_at_ms, tag=tag.name, version=tag.version)

    def _by_version(self, each: ParsedKey, ended: int | None) -> Held:
        """Held by versions before `ended`, until one from there on is the oldest that is retained."""
        later = [one.version for one in self._checkpoints if ended is not None and one.version >= ended]
        shown = None if ended is None else ended - 1
        if not later:
            return self._held(each, KeptBy.VERSION, "no later version has a state: forget again", version=shown)
        until_ms = self._time_of(min(later)) + self._retention_ms + self._horizon_ms
        if each.kind in (KeyKind.MANIFEST, KeyKind.JSON_CHECKPOINT_PART):
            until_ms += self._horizon_ms  # only a state that is gone names no manifest
        why = f"versions up to {shown} are retained, which show it"
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
        return {tag: snapshot_keys(self.log.snapshot(version=tag.version)) for tag in self._tags}

    @cached_property
    def _unmerged(self) -> frozenset[str]:
        return frozenset(key for each in self.marked.roots.regions.values() for key in each.segments)

    @cached_property
    def _retained_keys(self) -> frozenset[str]:
        base = self.marked.roots.retained.base
        later = (action for version, actions in self.versions.items() if version > base.version for action in actions)
        return snapshot_keys(base).union(*(named_keys(action) for action in later))

    @cached_property
    def _checkpoints(self) -> Sequence[Checkpointed]:
        return self.found.checkpoints()

    @cached_property
    def _named_by(self) -> Mapping[str, frozenset[str]]:
        """What each checkpoint names. One GET each, several at a time."""

        def named(checkpoint: Checkpointed) -> frozenset[str]:
            try:
                return frozenset(keys_of_checkpoint(self.log.store, checkpoint))
            except NotFound:  # collected since it was listed
                return frozenset()

        keys = [each.key for each in self._checkpoints]
        return dict(zip(keys, all_of(named, self._checkpoints, AT_ONCE), strict=True))
