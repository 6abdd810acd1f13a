"""Which versions of a table can still be opened, and what each commit named or removed.

Retained is every version from the *base* on: the newest checkpointed version that was already superseded or current
when the retention period began. So each point in time within the period can be opened, from a state that is intact.
Without such a state every version is retained. Below the base the tagged versions are retained, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.keys import version_key
from storage_core.formats.tags import Tag
from storage_core.gc.named_keys import named_keys, removed_keys
from storage_core.log.actions import Action
from storage_core.log.advance import read_version
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.tags import read_tags
from storage_core.objectstore.reading import exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """When a key left the table: the removing version and its commit time in ms."""

    version: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The retained versions `base` to `head`, every key that one of them names, and every removal that is recorded.

    `tagged` are the versions that tags retain, also below the base; their keys are among `keys`. `checkpoints` are
    those of the base, the head and the tagged versions, in every form that exists. `expired` tells that there are tags
    which retain nothing any more. `removals` holds the last removal of each key, also by versions below the base whose
    files still exist.
    """

    head: Snapshot
    base: Snapshot
    tagged: frozenset[int]
    checkpoints: tuple[Checkpointed, ...]
    expired: bool
    keys: frozenset[str]
    removals: Mapping[str, Removal]

    def merged_generation(self, region: str) -> int:
        """Return the last generation of the region that every version from the base on has merged; 0 for none.

        A tag below the base keeps no generation: a version that is read by its name is the base table alone.
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
    """Return what the table retains at `now_ms`. One GET per version file that exists and one for the tags.

    Opens three snapshots, and one for each version below the base that has a tag which is live at `now_ms`. A HEAD per
    form that a checkpoint of the base, the head or a tagged version can have: a listing may miss those. Raises whatever
    a read raises: what cannot be read may name anything, so nothing may be collected (lesson 41).
    """
    head = log.snapshot()
    commits = _existing_commits(log, head.version)
    base = _base(log, head, commits, cutoff_ms=now_ms - head.config.version_retention_ms)
    if commits and commits[-1].version > base.version + 1:
        raise Corrupt(f"{version_key(commits[-1].version - 1)}: missing, but not older than version {base.version}")
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
        keys=snapshot_keys(head).union(*map(snapshot_keys, (base, *older)), *(each.named for each in later)),
        # Newest last, so that it counts: what was restored and removed again is unneeded since then only.
        removals={key: each.removal for each in reversed(commits) for key in each.removed},
    )


def named_since(log: TransactionLog, version: int) -> frozenset[str]:
    """Return the keys that versions after `version` name. One GET per such version and one that finds nothing."""
    found: set[str] = set()
    while (actions := read_version(log.store, version + 1)) is not None:
        found |= _named(actions)
        version += 1
    return frozenset(found)


def snapshot_keys(snapshot: Snapshot) -> frozenset[str]:
    """Return every key that the state of the snapshot names."""
    indexed: list[Action] = [*snapshot.segments.values(), *snapshot.translations.values()]
    return _named([snapshot.metadata, *snapshot.splits.values(), *indexed])


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
    found = {version: _forms(log, version) for version in sorted(behind | {base.version, head.version})}
    for tag in live:
        forms = found[tag.version] = found.get(tag.version) or _forms(log, tag.version)
        if not forms and tag.version < base.version:
            raise Corrupt(
                f"the tag {tag.name!r} keeps version {tag.version}, of which there is no checkpoint",
                advice="nothing is collected until the tag is removed or set again",
                tag=tag.name,
            )
    return tuple(each for forms in found.values() for each in forms)


def _forms(log: TransactionLog, version: int) -> tuple[Checkpointed, ...]:
    return tuple(each for each in Checkpointed.forms(version) if exists(log.store, each.key))


def _named(actions: Iterable[Action]) -> frozenset[str]:
    return frozenset(key for action in actions for key in named_keys(action))


def _existing_commits(log: TransactionLog, newest: int) -> list[_Commit]:
    commits: list[_Commit] = []
    for version in range(newest, -1, -1):
        actions = read_version(log.store, version)
        if actions is None:
            break
        removed = frozenset(key for action in actions for key in removed_keys(action))
        commits.append(_Commit(version, commit_timestamp(actions, 0), _named(actions), removed))
    return commits


def _base(log: TransactionLog, head: Snapshot, commits: list[_Commit], *, cutoff_ms: int) -> Snapshot:
    oldest = commits[-1].version if commits else head.version
    current_at_cutoff = next((each.version for each in commits if each.timestamp_ms <= cutoff_ms), oldest)
    current = log.snapshot(version=current_at_cutoff)
    wanted = oldest if current.checkpoint_version is None else current.checkpoint_version
    base = current if current.version == wanted else log.snapshot(version=wanted)
    # Below a base only its own state leads to it: without one nothing but version 0 may be the base.
    if base.version > 0 and base.checkpoint_version != base.version:
        raise Corrupt(f"version {base.version} should be retained, but neither a state of it nor version 0 is intact")
    return base
