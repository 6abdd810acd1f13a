"""The roots: the set of all objects that may still be read. The collector gathers the roots before it marks garbage.

Roots come from the log, from region manifests and from the mirrors, and never from a listing. An incomplete listing can
therefore hide garbage, but cannot turn a needed object into garbage (lesson 49). Checkpoints are the only exception,
because they are derived. The checkpoints of the base, the head and tagged versions are requested by key.

All versions from the *base* on are retained. The base is the newest version with a checkpoint that existed at the start
of the retention period. The table can therefore be opened at every point in time within the period. If there is no
checkpoint, every version is retained. Below the base, only the tagged versions are retained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats.documents import Tag
from storage_core.data.formats.keys import parse, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.mirrors import IcebergMetadata, ShownSnapshot, files_of, manifests_of
from storage_core.log.checkpoint import named_keys as keys_of_checkpoint
from storage_core.log.listing import Checkpointed
from storage_core.log.log import TransactionLog, read_tags
from storage_core.log.mirror_metadata import (
    ICEBERG_ADVICE,
    checkpointed_files,
    commits_down,
    newest_commit,
    newest_metadata,
    read_metadata,
)
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.versions import read_version, versions_down
from storage_core.maintain.regions import RegionRoots, region_roots
from storage_core.maintain.table_objects import Listing, keys_of, named_by, removed_keys
from storage_core.store.contract import ObjectStore, exists
from storage_core.store.meter import all_of

_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The removal of a key from the table: the removing version and its commit time in ms."""

    version: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The retained versions `base` to `head`, every key in these versions, and every recorded removal.

    - `tagged`: versions that tags retain, also below the base. `keys` includes the keys of these versions.
    - `checkpoints`: the checkpoints of the base, the head and the tagged versions, in every existing form.
    - `expired`: True if there are expired tags.
    - `removals`: the last removal of each key. Versions below the base count if their files still exist.
    """

    head: Snapshot
    base: Snapshot
    tagged: frozenset[int]
    checkpoints: tuple[Checkpointed, ...]
    expired: bool
    keys: frozenset[str]
    removals: Mapping[str, Removal]

    def merged_generation(self, region: str) -> int:
        """Return the last generation of the region that the base and all later versions have merged, or 0.

        A tag below the base keeps no generation, because readers of a tagged version read no unmerged records.
        """
        return min(each.merged_generations.get(region, 0) for each in (self.base, self.head))


@dataclass(frozen=True, slots=True)
class _Commit:
    version: int
    timestamp_ms: int
    named: frozenset[str]
    removed: frozenset[str]

    @property
    def removal(self) -> Removal:
        return Removal(version=self.version, timestamp_ms=self.timestamp_ms)


def retained(log: TransactionLog, *, now_ms: int) -> Retained:
    """Return the objects that the table retains at `now_ms`.

    Every read error is raised. An object that cannot be read may reference any key, so nothing may be collected (lesson
    41).

    Cost:
        One GET per existing version file, and one GET for the tags. The requests of opening three snapshots, and one
        snapshot for each version below the base with a live tag. One HEAD per possible form of the checkpoints of the
        base, the head and the tagged versions, because a listing may miss these checkpoints.
    """
    head = log.snapshot()
    commits = _existing_commits(log, head.version)
    base = _base(log, head, commits, cutoff_ms=now_ms - head.config.version_retention_ms)
    if commits and commits[-1].version > base.version + 1:
        raise Corrupt(
            f"{version_key(commits[-1].version - 1)}: the file is missing, although retained versions start at "
            f"{base.version}"
        )
    later = [each for each in commits if each.version > base.version]
    tags = read_tags(log.store)
    live = tags.live(now_ms)
    older = [_tagged(log, tag) for tag in live if tag.version < base.version]
    return Retained(
        head=head,
        base=base,
        tagged=frozenset(tag.version for tag in live),
        checkpoints=_checkpoints(log, base, head, live),
        expired=len(live) < len(tags.by_name),
        keys=keys_of(head).union(*map(keys_of, (base, *older)), *(each.named for each in later)),
        # The newest removal comes last and replaces earlier removals. If a key was restored and removed again, only the
        # second removal counts.
        removals={key: each.removal for each in reversed(commits) for key in each.removed},
    )


def named_since(log: TransactionLog, version: int) -> frozenset[str]:
    """Return the keys that versions after `version` reference.

    One GET per version, and one GET that finds no version.
    """
    found: set[str] = set()
    while (actions := read_version(log.store, version + 1)) is not None:
        found |= named_by(actions)
        version += 1
    return frozenset(found)


def _tagged(log: TransactionLog, tag: Tag) -> Snapshot:
    try:
        return log.snapshot(version=tag.version)
    except (NotFound, Corrupt) as error:
        raise Corrupt(
            f"the tag {tag.name!r} keeps version {tag.version}, which does not open: {error.found}",
            advice="nothing is collected until the tag is removed or its version opens again",
            tag=tag.name,
        ) from error


def _checkpoints(log: TransactionLog, base: Snapshot, head: Snapshot, live: Iterable[Tag]) -> tuple[Checkpointed, ...]:
    behind = {each.version for each in (base.checkpoint, head.checkpoint) if each is not None}
    found = {version: existing_forms(log.store, version) for version in sorted(behind | {base.version, head.version})}
    for tag in live:
        forms = found[tag.version] = found.get(tag.version) or existing_forms(log.store, tag.version)
        if not forms and tag.version < base.version:
            raise Corrupt(
                f"the tag {tag.name!r} retains version {tag.version}, which has no checkpoint",
                advice="nothing is collected until the tag is removed or set again",
                tag=tag.name,
            )
    return tuple(each for forms in found.values() for each in forms)


def existing_forms(store: ObjectStore, version: int) -> tuple[Checkpointed, ...]:
    """Return the checkpoints of a version, in every existing form. Makes one HEAD per checkpoint form."""
    return tuple(each for each in Checkpointed.forms(version) if exists(store, each.key))


def _existing_commits(log: TransactionLog, newest: int) -> list[_Commit]:
    commits: list[_Commit] = []
    for version, actions in versions_down(log.store, newest):
        removed = frozenset(key for action in actions for key in removed_keys(action))
        commits.append(_Commit(version, commit_timestamp(actions, 0), named_by(actions), removed))
    return commits


def _base(log: TransactionLog, head: Snapshot, commits: list[_Commit], *, cutoff_ms: int) -> Snapshot:
    oldest = commits[-1].version if commits else head.version
    current_at_cutoff = next((each.version for each in commits if each.timestamp_ms <= cutoff_ms), oldest)
    current = log.snapshot(version=current_at_cutoff)
    wanted = oldest if current.checkpoint_version is None else current.checkpoint_version
    base = current if current.version == wanted else log.snapshot(version=wanted)
    # A version that is older than the retained version files can be opened only from its own state. Without a state,
    # only version 0 can be the base.
    if base.version > 0 and base.checkpoint_version != base.version:
        raise Corrupt(
            f"version {base.version} should be retained, but cannot be opened. Neither the state of this "
            "version nor version 0 is intact"
        )
    return base


@dataclass(frozen=True, slots=True)
class Published:
    """The keys that the retained versions of a mirror reference (decision 0032). Older mirror files are not needed.

    `first` is the number of the oldest kept file.
    """

    keys: frozenset[str] = frozenset()
    first: int = 0


def published(store: ObjectStore, *, cutoff_ms: int) -> Published:
    """Return the objects that the Delta mirror keeps: the newest version, and versions superseded after `cutoff_ms`.

    Raises:
        Corrupt: A commit is missing or cannot be read, so it may name any key.

    Cost:
        Two GETs if nothing was published. Otherwise one GET per kept commit, and the GETs of a checkpoint below the
        kept commits.
    """
    newest = newest_commit(store)
    if newest is None:
        return Published()
    named: set[str] = set()
    first = 0
    for commit in commits_down(store, newest.commit):
        named |= commit.added.keys()
        shown = commit.shown  # None: another program made the commit, and its age is unknown
        is_old = commit.version > 0 and shown is not None and shown.published_at_ms <= cutoff_ms
        below = checkpointed_files(store, commit.version) if is_old else None
        if below is not None:
            named |= below.files.keys()
            first = commit.version
            break
    keys = frozenset(key for key in named if _is_split(key))
    # Readers start at the hinted commit, so this commit stays as well.
    return Published(keys, min(first, max(newest.hinted, 0)))


def published_in_iceberg(store: ObjectStore, listed: Iterable[int], *, cutoff_ms: int) -> Published:
    """Return the objects of the Iceberg snapshots that the mirror keeps.

    The mirror keeps the newest snapshot, and snapshots superseded after `cutoff_ms`.

    Args:
        store: Store of the table.
        listed: Numbers of the listed metadata files. Used if the hint is lost.
        cutoff_ms: Start of the retention period, in ms.

    Returns:
        The keys of manifest lists, manifests and splits.

    Raises:
        Corrupt: One of these objects is missing or cannot be read, so it may name any key.

    Cost:
        Two GETs if nothing was published. Otherwise the requests of `newest_metadata`, one GET per hundred kept
        snapshots, and one GET per manifest list and manifest.
    """
    newest = newest_metadata(store, listed=max(listed, default=1))
    if newest is None:
        return Published()
    lists, first = _kept(store, newest.metadata, newest.hinted, cutoff_ms)
    named = {(root, key) for root, each in lists for key in manifests_of(_read(store, each.files), root, each.files)}
    manifests = sorted(named)
    files = all_of(lambda at: files_of(_read(store, at[1]), *at), manifests, _AT_ONCE)
    splits = {file.key for found in files for file in found if file.is_live and _is_split(file.key)}
    return Published(frozenset({*splits, *(key for _, key in manifests), *(each.files for _, each in lists)}), first)


def _kept(
    store: ObjectStore, newest: IcebergMetadata, hinted: int, cutoff_ms: int
) -> tuple[list[tuple[str, ShownSnapshot]], int]:
    """Return the kept snapshots with the location of the table at that time, and the first kept metadata file.

    A metadata file has the number of its newest snapshot. The file also contains a hundred older snapshots.
    """
    kept = [(newest.root, each) for each in reversed(newest.snapshots)]
    first, last = _first_kept(kept, hinted, cutoff_ms)
    while first == last > 1:  # an older metadata file may contain more retained snapshots
        older = read_metadata(store, last - 1)
        if older is None:
            break
        known = [(older.root, each) for each in reversed(older.snapshots) if each.sequence < last]
        if not known:  # another program wrote the file
            break
        kept += known
        first, last = _first_kept(kept, hinted, cutoff_ms)
    return [(root, each) for root, each in kept if each.sequence >= first], first


def _first_kept(kept: list[tuple[str, ShownSnapshot]], hinted: int, cutoff_ms: int) -> tuple[int, int]:
    """Return the number of the first kept snapshot and the number of the oldest snapshot.

    A snapshot is kept if it was the newest snapshot at some time within the retention. The hinted snapshot and newer
    snapshots are kept as well.
    """
    first = kept[0][1].sequence
    for (_, later), (_, each) in pairwise(kept):
        is_young = later.published_at_ms is None or later.published_at_ms > cutoff_ms
        if is_young or each.sequence >= hinted > 0:
            first = each.sequence
    return first, kept[-1][1].sequence


def _read(store: ObjectStore, key: str) -> bytes:
    try:
        return store.get(key).data
    except NotFound as error:
        raise Corrupt(
            f"{key}: the file is missing, but the Iceberg mirror refers to it", advice=ICEBERG_ADVICE, key=key
        ) from error


def _is_split(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.kind is KeyKind.SPLIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The objects that must stay.

    - `keys`: splits, segments, translations and retained checkpoints. `keys` includes segments of unmerged generations,
      and the splits and manifests of mirrors. `keys` also includes the manifests and parts of all existing checkpoints.
    - `regions`: for each region id, the `RegionRoots`, which contains the objects that must stay.
    - `published`: the splits and manifests that the mirrors reference.
    - `first`: for each kind of numbered object, the first number that stays. For version files, `first` contains the
      lower version number of the base and the oldest retained state. The table retains two or more states. If the
      newest state is damaged, readers open the head from an older state and the retained version files.
    """

    retained: Retained
    keys: frozenset[str]
    regions: Mapping[str, RegionRoots]
    published: frozenset[str] = frozenset()
    first: Mapping[KeyKind, int]


def roots(store: ObjectStore, log: TransactionLog, listing: Listing, *, now_ms: int) -> Roots:
    """Return the roots at `now_ms`. `listing` contains the existing states and regions.

    Every read error is raised, and ends a sweep.

    Cost:
        The requests of `retained`, `region_roots`, `published` and `published_in_iceberg`. One GET per checkpoint.
    """
    kept = retained(log, now_ms=now_ms)
    every = {each.key: each for each in (*listing.checkpoints(), *kept.checkpoints)}.values()
    newest = sorted(each.version for each in every)[-kept.head.config.retained_states :]
    listed_regions = {each.region for each in listing.parsed.values() if each.region is not None}
    looked = {
        name: region_roots(
            store, name, merged=kept.merged_generation(name), newest=kept.head.merged_generations.get(name, 0)
        )
        for name in sorted(listed_regions | kept.head.merged_generations.keys())
    }
    regions = {region: found for region, found in looked.items() if found is not None}
    unmerged = frozenset(key for found in regions.values() for key in found.segments)
    cutoff_ms = now_ms - kept.head.config.version_retention_ms
    delta = published(store, cutoff_ms=cutoff_ms)
    iceberg = published_in_iceberg(store, listing.versions(KeyKind.ICEBERG_METADATA), cutoff_ms=cutoff_ms)
    mirrored = delta.keys | iceberg.keys
    return Roots(
        retained=kept,
        keys=kept.keys | _retained_checkpoints(every, newest, kept) | _named(store, every) | unmerged | mirrored,
        regions=regions,
        published=mirrored,
        first={
            KeyKind.VERSION: min((kept.base.version, *newest)),
            KeyKind.DELTA_COMMIT: delta.first,
            KeyKind.DELTA_CHECKPOINT: delta.first,
            KeyKind.ICEBERG_METADATA: iceberg.first,
        },
    )


def _retained_checkpoints(every: Iterable[Checkpointed], newest: Sequence[int], kept: Retained) -> frozenset[str]:
    named = kept.tagged.union(newest)
    return frozenset(each.key for each in every if each.version >= kept.base.version or each.version in named)


def _named(store: ObjectStore, every: Iterable[Checkpointed]) -> frozenset[str]:
    # The result includes checkpoints that will soon be deleted. Every existing checkpoint can therefore be opened
    # completely.
    return frozenset(key for each in every for key in keys_of_checkpoint(store, each))
