"""`repair`: what is left of a damaged table, as a sound table in a new place (docs/architecture/transaction-log.md,
"History").

The damaged table is only read. What is written is written in an order that makes the new place a table last: objects,
regions, then the log, so that a repair that was killed leaves a folder that no reader takes for a table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import InvalidInput, NotFound
from storage_core.formats.keys import KeyKind, tags_key, version_key
from storage_core.formats.tags import Tag
from storage_core.fsck.check import fsck
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.kept_log import Kept
from storage_core.fsck.log_check import check_log, part_of_log
from storage_core.fsck.report import DAMAGE
from storage_core.fsck.shared_objects import whole_inventory
from storage_core.fsck.version_evidence import newest_planned
from storage_core.gc.boundary import advance_boundary
from storage_core.history.renumbered import with_renumbered
from storage_core.history.tagging import set_tag
from storage_core.ids import Ids
from storage_core.log.actions import (
    Action,
    Add,
    MergedGenerations,
    Metadata,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
)
from storage_core.log.apart import require_apart
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.root import named_keys
from storage_core.log.conflicts.requirements import MergeProgress, pruning, records_a_version
from storage_core.log.listing import list_log
from storage_core.log.log import TransactionLog
from storage_core.log.progress import Progress
from storage_core.log.snapshot import Snapshot
from storage_core.log.tags import read_tags
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.resolve import locations_above
from storage_core.quarantine import read_entry
from storage_core.repair.known_log import Replacement
from storage_core.repair.outcome import Lost, Outcome, Recovered
from storage_core.repair.region_salvage import read_regions
from storage_core.repair.region_transfer import bring_regions
from storage_core.repair.salvage import Salvage, salvage
from storage_core.repair.transfer import Transfer

OPERATION = "REPAIR"

_logger = logging.getLogger(__name__)


def repair(source: ObjectStore, target: ObjectStore, *, clock: Clock, ids: Ids, dry_run: bool = False) -> Outcome:
    """Make a sound table in `target` of everything that can be read in `source`, and say what was lost.

    `target` must be empty; `source` is never written. With `dry_run` nothing is written at all. Kept as they are: the
    longest stretch of versions that opens, every split and segment that is what the log says, quarantine, tags. Made
    again: states and hint, regions (every acknowledged record that is not merged), and, where the log is lost, the log.
    Raises `InvalidInput` for a target that is not empty, that overlaps the source or lies in another table's folder,
    `NotFound` when there is nothing to repair, `Corrupt` when nothing says what the table is, `Unsupported` beside
    files of a newer release, `CommitConflict` when somebody else writes into `target`, `CommitUnknown`, `Unavailable`.
    Requests: those of a check and of `require_apart`, one GET and one PUT per object. Memory: two snapshots and one
    object.
    """
    _require_new_place(source, target)
    inventory = whole_inventory(source)
    if not inventory.parsed:
        raise NotFound(f"{source.uri}: there is nothing of a table here to repair", uri=source.uri)
    written = None if dry_run else target
    work = _Repair(source, written, inventory, Transfer(source, written, inventory), clock=clock, ids=ids)
    outcome = work.run(target.uri)
    if dry_run:
        return outcome
    _logger.info("repaired %s into %s: version %d", source.uri, target.uri, outcome.version)
    return replace(outcome, check=fsck(target, clock=clock, deep=True))


def _named(lost: range) -> str:
    return "the version does" if len(lost) == 1 else f"this version and those up to {lost[-1]} do"


def _require_new_place(source: ObjectStore, target: ObjectStore) -> None:
    ours, theirs = source.uri, target.uri
    if ours == theirs or ours.startswith(theirs + "/") or ours in locations_above(theirs):
        raise InvalidInput(
            f"{target.uri}: a repair writes into a new location, apart from {source.uri}", uri=target.uri
        )
    found = next(iter(target.list("")), None)
    if found is not None:
        raise InvalidInput(
            f"{target.uri}: not empty ({found.key}); a repair writes into an empty location only", uri=target.uri
        )
    require_apart(target)


@dataclass(slots=True)
class _Repair:
    """One repair: what is found, what is brought over, what is written anew. `target` None writes nothing."""

    source: ObjectStore
    target: ObjectStore | None
    inventory: Inventory
    transfer: Transfer
    _: KW_ONLY
    clock: Clock
    ids: Ids

    def run(self, target_uri: str) -> Outcome:
        check = check_log(self.source, self.inventory)
        regions = read_regions(self.source, self.inventory)
        found = salvage(self.source, self.inventory, check, regions)
        tags = self._tags()
        tagged = self._tagged(tags, found, check.checkpoints)
        base = self._base(found, tagged)
        found = replace(found, metadata=self._renumbered(found, check.newest))
        records, unread = bring_regions(
            self.source, self.target, self.inventory, found, regions=regions, clock=self.clock, ids=self.ids
        )
        self.transfer.lost += unread
        for parsed in self.inventory.of(KeyKind.QUARANTINE):
            self.transfer.copy_if(parsed.key, partial(read_entry, self.source, parsed.key))
        version = self._log(found, base, tagged)
        self._set_tags(tags)
        return Outcome(
            source=self.source.uri,
            target=target_uri,
            status="planned" if self.target is None else "repaired",
            first_version=0 if found.kept is None else found.kept.first,
            version=version,
            splits=len(base),
            rows=sum(add.visible_rows for add in base.values()),
            bytes=sum(add.size for add in base.values()),
            records=records,
            recovered=tuple(self.transfer.recovered),
            lost=tuple(self.transfer.lost),
            unproven=tuple(path for path in found.unproven if path in base),
            check=None,
        )

    # --- the base

    def _base(self, found: Salvage, tagged: list[Checkpointed]) -> dict[str, Add]:
        """Bring the splits and segments over and return the live ones; what older versions name comes where it can."""
        base = {path: add for path, add in found.splits.items() if self.transfer.place(add)}
        missing = {path: add for path, add in found.splits.items() if path not in base}
        for replacement in found.replacements:
            if self._undo(replacement, base, missing):
                base = {path: add for path, add in base.items() if path not in replacement.outputs}
                base |= {add.path: add for add in replacement.inputs}
                missing = {path: add for path, add in missing.items() if path not in replacement.outputs}
        for path, add in missing.items():
            why = "it is not what was written" if path in self.inventory.objects else "it is gone"
            if not self.transfer.has_vector(add):
                why = "its deletion vector is lost: which of its rows are deleted is not known"
            self.transfer.lost.append(Lost(key=path, reason=why, rows=add.visible_rows))
        self._note_found(found)
        place_all = self.transfer.place_all
        place_all(found.older.values(), found.named_segments.values(), found.named_translations.values())
        for each in self._opened(tagged):
            place_all(each.splits.values(), each.segments.values(), each.translations.values())
        for vector in self.inventory.of(KeyKind.VECTOR):  # as they are: entries of any version say what they must be
            self.transfer.copy(vector.key)
        return base

    def _undo(self, replacement: Replacement, base: dict[str, Add], missing: dict[str, Add]) -> bool:
        """Whether a compaction whose output is lost can be taken back: nothing of it was replaced, its inputs are."""
        lost = replacement.outputs & missing.keys()
        if not lost or not replacement.outputs <= base.keys() | missing.keys():
            return False
        if not all(self.transfer.place(add) for add in replacement.inputs):
            return False
        inputs = ", ".join(add.path for add in replacement.inputs)
        self.transfer.recovered += [Recovered(key=path, how=f"its rows are in {inputs}") for path in sorted(lost)]
        return True

    def _note_found(self, found: Salvage) -> None:
        for path, reason in sorted(found.unreadable.items()):
            self.transfer.lost.append(Lost(key=path, reason=f"cannot be judged: {reason}", is_uncounted=True))
        self.transfer.lost += [
            Lost(key=add.path, reason="merges whose versions are lost have superseded all of its rows")
            for add in found.superseded
        ]
        self.transfer.lost += [
            Lost(
                key=f"_mem_wal/{region}/",
                reason=f"versions that merged its generations are lost, and not all of their records are at hand: rows "
                f"that they deleted may be live again in {splits} splits",
            )
            for region, splits in sorted(found.doubtful.items())
        ]
        self.transfer.lost += [
            Lost(key=version_key(lost[0]), reason=f"{_named(lost)} not open in the repaired table")
            for lost in found.lost_versions
        ]

    def _renumbered(self, found: Salvage, newest: int) -> Metadata:
        """The metadata, recording the newest version that a split brought over names and the new log may lack."""
        last = 0 if found.kept is None else found.kept.snapshot.version  # a repair that changes nothing adds no version
        if newest <= last:
            return found.metadata
        here = [path for path in self.transfer.placed if path in self.inventory.objects]
        planned = newest_planned(self.source, self.inventory, here, found.metadata.id)
        if planned is None or planned.version <= last:
            return found.metadata
        configuration = with_renumbered(found.metadata.configuration, planned.version)
        return replace(found.metadata, configuration=configuration)

    def _opened(self, checkpoints: list[Checkpointed]) -> Iterator[Snapshot]:
        for each in checkpoints:
            yield TransactionLog(part_of_log(self.source, versions=(), checkpoints=(each,))).snapshot()

    # --- the log

    def _log(self, found: Salvage, base: dict[str, Add], tagged: list[Checkpointed]) -> int:
        """Write the log: what is kept, then one commit that makes the base what it is. Return the newest version."""
        kept = found.kept
        if kept is not None:
            self._copy_log(kept, tagged)
        if self.target is None:
            changed = kept is None or bool(self._actions(found, base, kept.snapshot))
            return (0 if kept is None else kept.snapshot.version) + int(changed)
        table = TransactionLog(self.target, clock=self.clock, ids=self.ids)
        head = table.create(found.metadata, operation=OPERATION) if kept is None else table.snapshot()
        actions = self._actions(found, base, head)
        if actions:
            metrics = {"splits_out": len(base), "splits_lost": len(found.splits) - len(base)}
            regions = [each.region for each in actions if isinstance(each, MergedGenerations)]
            starts = [MergeProgress(region, head.merged_generations.get(region, 0)) for region in regions]
            head = table.commit(head, actions, operation=OPERATION, metrics=metrics, requirements=starts).snapshot
        table.checkpoint(head)
        versions = list_log(self.target).versions
        first = versions[0] if versions else head.version
        if first > 0:
            advance_boundary(self.target, first, nonce=self.ids.uuid())
        return head.version

    def _copy_log(self, kept: Kept, tagged: list[Checkpointed]) -> None:
        for each in [*kept.checkpoints, *tagged]:
            for key in (*named_keys(self.source, each), each.key):
                self.transfer.copy(key)
        for version in kept.versions:
            self.transfer.copy(version_key(version))

    def _actions(self, found: Salvage, base: dict[str, Add], head: Snapshot) -> list[Action]:
        now_ms = self.clock.now_ms()
        before = dict(head.splits)
        deleted = [add for path, add in before.items() if path not in base]
        actions: list[Action] = [found.metadata] if found.metadata != head.metadata and found.kept is not None else []
        actions += [Remove(path=add.path, deletionTimestamp=now_ms, size=add.size) for add in deleted]
        actions += [add for path, add in sorted(base.items()) if before.get(path) != add]
        dropped = [each for each in head.segments.values() if not self.transfer.place(each)]
        actions += [RemoveIndexSegment(index=each.index, path=each.path) for each in dropped]
        gone = [each for each in head.translations.values() if not self.transfer.place(each)]
        actions += [RemoveTranslation(path=each.path) for each in gone]
        # Fences whose tokens are versions name those of the damaged log: what was planned there cannot commit here.
        known = Progress(txns=found.txns, fences=found.fences, merged_generations=found.merged)
        # What was planned on versions that their fences name was planned on another log: numbers begin anew here.
        actions += [each for each in known.beyond(head.progress) if not records_a_version(each)]
        return [*actions, pruning(head)] if any(isinstance(each, RemoveTxn) for each in actions) else actions

    # --- the tags

    def _tags(self) -> list[Tag]:
        if tags_key() not in self.inventory.objects:
            return []
        try:
            return read_tags(self.source).live(self.clock.now_ms())
        except DAMAGE as error:
            self.transfer.lost.append(Lost(key=tags_key(), reason=error.found))
            return []

    def _tagged(self, tags: list[Tag], found: Salvage, sound: frozenset[Checkpointed]) -> list[Checkpointed]:
        """The checkpoints that tags keep below the kept versions: each opens its own version and nothing else."""
        if found.kept is None:
            return []
        versions = {each.version for each in tags if each.version < found.kept.first}
        return sorted((each for each in sound if each.version in versions), key=lambda each: each.key)

    def _set_tags(self, tags: list[Tag]) -> None:
        if self.target is None:
            return
        table = TransactionLog(self.target, clock=self.clock, ids=self.ids)
        for tag in tags:
            try:
                snapshot = table.snapshot(version=tag.version)
                set_tag(table, tag.name, snapshot, expires_at_ms=tag.expires_at_ms)
            except DAMAGE as error:
                self.transfer.lost.append(Lost(key=tags_key(), reason=f"the tag {tag.name!r}: {error.found}"))
