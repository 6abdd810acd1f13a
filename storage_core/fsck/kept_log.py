"""The longest stretch of a log that opens: what a repair keeps as it is, and whose older versions still need splits."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.errors import Unsupported
from storage_core.formats.keys import version_key
from storage_core.fsck.log_check import LogCheck, part_of_log
from storage_core.fsck.report import DAMAGE
from storage_core.log.actions import Action, Add
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.encoding.codec import decode_version
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The part of the log that stays as it is: version files, checkpoints, the snapshots they lead to."""

    versions: tuple[int, ...]
    checkpoints: tuple[Checkpointed, ...]
    oldest: Snapshot
    snapshot: Snapshot

    @property
    def first(self) -> int:
        """The oldest version that still opens."""
        return self.oldest.version


def kept_part(store: ObjectStore, check: LogCheck) -> Kept | None:
    """Return the longest stretch that opens: the one that reaches furthest, from as early a start as leads there.

    So it ends in the head if that opens; None when nothing does. The requests of opening two versions per try. Raises
    `Unsupported` for a log of a newer release.
    """
    bases = {-1, *(each.version for each in check.checkpoints)}
    reached = [(_reach(base, check.versions), base) for base in bases]
    for furthest, base in sorted(reached, key=lambda each: (-each[0], each[1])):
        if furthest >= 0 and (found := _opened(store, check, (base, furthest))) is not None:
            return found
    return None


def _opened(store: ObjectStore, check: LogCheck, stretch: tuple[int, int]) -> Kept | None:
    first, last = max(stretch[0], 0), stretch[1]
    versions = tuple(version for version in sorted(check.versions) if first <= version <= last)
    within = [each for each in check.checkpoints if first <= each.version <= last]
    checkpoints = tuple(sorted(within, key=lambda each: each.key))
    view = part_of_log(store, versions=versions, checkpoints=checkpoints)
    try:
        log = TransactionLog(view)
        snapshot, oldest = log.snapshot(unfinished=True), log.snapshot(version=first, unfinished=True)
        _ = snapshot.schema, snapshot.config, snapshot.splits.values(), oldest.splits.values()
    except Unsupported:
        raise
    except DAMAGE:
        return None
    return Kept(versions=versions, checkpoints=checkpoints, oldest=oldest, snapshot=snapshot)


def _reach(base: int, versions: frozenset[int]) -> int:
    while base + 1 in versions:
        base += 1
    return base


def older_splits(store: ObjectStore, check: LogCheck) -> list[Add]:
    """Return the splits that only older versions of the log name, of those versions that still open.

    The requests of opening two versions, and one GET per version file. Memory: an action per split.
    """
    kept = kept_part(store, check)
    if kept is None:
        return []
    named = dict(kept.oldest.splits)
    for version in kept.versions:
        for action in actions_of(store, version):
            if isinstance(action, Add):
                named.setdefault(action.path, action)
    live = set(kept.snapshot.splits)
    return [add for path, add in named.items() if path not in live]


def actions_of(store: ObjectStore, version: int) -> list[Action]:
    """Return the actions of a version file, which may say another number. One GET. Raises `NotFound`, `Corrupt`."""
    return decode_version(store.get(version_key(version)).data, version_key(version))
