"""Salvage of a damaged log: the part that can be kept, and the live splits of a lost part.

docs/architecture/transaction-log.md describes repairs in the section "History".

A repair keeps the longest sequence of valid version files from which the table can be opened. After a gap in the log,
the repair reads each action in the later version files separately (`KnownLog`). If the log contains no information, the
split files decide (`recovered_splits.choose`).

A merge hides superseded rows with deletion vectors, which are stored only in the log. If the version of a merge is
lost, the files still contain most of this information. The base never contains two live rows of a key. If two rows of a
key are found, the row in the split with the later plan is live. For a deleted row, no split contains a newer row of the
same key. If the records of the lost merge still exist, the repair finds the delete in the records. The repair uses
these records only if the split is certainly older than the merge. If no rule applies, the repair reports that deleted
rows may be visible again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import Unsupported
from storage_core.data.formats import arrow_files, documents
from storage_core.data.formats.keys import gc_candidates_key
from storage_core.data.formats.kinds import KeyKind, Reason
from storage_core.data.rows.columns import as_wide
from storage_core.data.rows.keys import bitmap_of, key_codes, positions
from storage_core.data.settings.layout import BY_HAND_SPEC
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, IndexSegment, MergedGenerations, Metadata, Remove, Translation
from storage_core.log.deletion_vector import inline
from storage_core.log.transactions import Progress, Transactions
from storage_core.maintain.findings import DAMAGE, Kind
from storage_core.maintain.log_check import LogCheck, PreservedLog, actions_of, kept_part
from storage_core.maintain.recovered_splits import (
    Choice,
    Evidence,
    FoundSplit,
    choose,
    metadata_of,
    newest_readable,
    read_found,
    spec_ids_of_merges,
    with_region_specs,
)
from storage_core.maintain.regions import RegionSalvage
from storage_core.maintain.table_objects import Listing
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.metadata import MergedRange
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.write.region import generation

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedSplit:
    """A split that may be live, and its position in the order of versions.

    - `order`: the order of rows with the same key. The row in the split with the higher `order` is newer.
    - `progress`: by region, the last generation that was merged into the rows of the split.
    - `certain`: True if the split contains no records of later generations.
    """

    add: Add
    order: int
    progress: Mapping[str, int]
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMerges:
    """The effects of lost merges.

    - `marked`: splits with an extended deletion vector.
    - `deleted`: splits without a remaining row.
    - `doubtful`: by region, the number of splits that may have deleted rows of an unreadable generation.
    """

    marked: tuple[Add, ...]
    deleted: tuple[Add, ...]
    doubtful: Mapping[str, int]


def superseded(
    store: ObjectStore,
    splits: Sequence[DatedSplit],
    key: Sequence[str],
    *,
    merged: Mapping[str, int],
    regions: Mapping[str, RegionSalvage],
) -> LostMerges:
    """Return the missing effects of merges up to `merged`.

    These effects of merges are not in the deletion vectors of the splits.

    A split that cannot be read is skipped. The repair does not copy an unreadable split and reports the split as lost.

    Cost:
        One GET per WAL entry of these merges, and two or three ranged GETs per split. Memory: all keys of the splits
        and of the records.
    """
    held = [each for each in (_Held.read(store, split, key) for split in splits) if each is not None]
    if not held:
        return LostMerges(marked=(), deleted=(), doubtful={})
    records = [
        (region, number, keys)
        for region, last in sorted(merged.items())
        if region in regions
        for number, keys in _records(store, regions[region], key, after=_oldest(splits, region), last=last)
    ]
    every = [*(each.keys for each in held), *(keys for _, _, keys in records)]
    codes = key_codes(as_wide(every, key), key)
    size = max((int(each.max()) + 1 for each in codes if len(each)), default=0)
    newest = np.full(size, -1, np.int64)
    for each, own in zip(held, codes, strict=False):
        np.maximum.at(newest, own[each.visible], each.split.order)
    touched = {region: np.zeros(size, np.int64) for region, _, _ in records}
    for (region, number, _), own in zip(records, codes[len(held) :], strict=True):
        np.maximum.at(touched[region], own, number)
    changed = [_changed(each, own, newest, touched) for each, own in zip(held, codes, strict=False)]
    return LostMerges(
        marked=tuple(add for add in changed if add is not None and add.visible_rows),
        deleted=tuple(add for add in changed if add is not None and not add.visible_rows),
        doubtful=_doubtful(splits, merged, regions),
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """For one split, the keys of all rows in the file, and the rows that are visible according to the log."""

    split: DatedSplit
    keys: pa.Table
    deleted: BitMap
    visible: npt.NDArray[np.bool_]

    @staticmethod
    def read(store: ObjectStore, split: DatedSplit, key: Sequence[str]) -> _Held | None:
        try:
            keys, deleted = read_split(store, split.add.as_written, key), deleted_rows(store, split.add)
        except DAMAGE:
            return None
        visible = np.ones(keys.num_rows, np.bool_)
        visible[positions(deleted)] = False
        return _Held(split, keys, deleted, visible)


def _changed(held: _Held, codes: Codes, newest: Codes, touched: Mapping[str, Codes]) -> Add | None:
    """Return the action that hides the superseded rows of the split. Return None if no row is superseded."""
    dead = newest[codes] > held.split.order
    if held.split.certain:
        for region, generations in touched.items():
            dead |= generations[codes] > held.split.progress.get(region, 0)
    places = np.flatnonzero(dead & held.visible)
    if not len(places):
        return None
    vector = inline(held.deleted | bitmap_of(places))
    return replace(held.split.add, deletionVector=vector, numRecords=len(codes))


def _oldest(splits: Iterable[DatedSplit], region: str) -> int:
    return min((split.progress.get(region, 0) for split in splits), default=0)


def _records(
    store: ObjectStore, region: RegionSalvage, key: Sequence[str], *, after: int, last: int
) -> Iterable[tuple[int, pa.Table]]:
    for each in region.entries:
        if after < each.says.generation <= last:
            yield (
                each.says.generation,
                arrow_files.decode_wal_entry(store.get(each.key).data, each.key).records.select(list(key)),
            )
    for filed in region.filed:
        if after < filed.generation <= last:
            # For a sorted generation, only its first number is certain. A higher number could hide newer rows.
            number = filed.flushed.first
            yield from ((number, records.select(list(key))) for records in generation.read_records(store, filed))


def _doubtful(
    splits: Sequence[DatedSplit], merged: Mapping[str, int], regions: Mapping[str, RegionSalvage]
) -> dict[str, int]:
    found: dict[str, int] = {}
    for region, last in merged.items():
        complete = regions[region].complete if region in regions else frozenset()
        for split in splits:
            since = range(split.progress.get(region, 0) + 1, last + 1)
            if since and not (split.certain and complete.issuperset(since)):
                found[region] = found.get(region, 0) + 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The input and output splits of a compaction commit for one window. Inputs and outputs have the same rows."""

    outputs: frozenset[str]
    inputs: tuple[Add, ...]


class KnownLog:
    """The part of the log that the repair keeps, and every readable action after this part.

    Version files between the kept part of the log and the actions after this part may be missing.

    - `live`, `deleted`, `named`: the splits that are live at the end, the removed splits, and the splits in any action.
    - `progress`: the merge progress. `progress` contains only the transactions and fences of versions after the kept
      part of the log.
    - `read_versions`: the versions that were read.
    """

    def __init__(self, kept: PreservedLog | None) -> None:
        base = None if kept is None else kept.snapshot
        self.metadata = None if base is None else base.metadata
        self.live: dict[str, Add] = dict(base.splits) if base else {}
        self.named: dict[str, Add] = self.live | (dict(kept.oldest.splits) if kept else {})
        self.deleted: set[str] = set()
        self._added_at = {path: base.splits.added_at(path)[0] for path in self.live} if base else {}
        self.progress = replace(base.progress, txns=Transactions(), fences={}) if base else Progress()
        self.named_segments = self.progress.segments | (dict(kept.oldest.segments) if kept else {})
        self.named_translations = self.progress.translations | (dict(kept.oldest.translations) if kept else {})
        self.replacements: list[Replacement] = []
        self.read_versions: set[int] = set()
        self._ranges = [MergedRange(region=region, after=0, generation=last) for region, last in self.merged.items()]
        # Version 0 creates the table and merges nothing. If only version 0 is missing, the merge progress is still
        # certain.
        self._read_up_to = 0 if base is None else base.version
        self._certain = True
        self._merged_at: dict[str, dict[str, int]] = {}

    def read(self, version: int | None, actions: list[Action], *, later: bool) -> None:
        """Add one version.

        Args:
            version: Number of the version. None means that the number is unknown.
            actions: Actions of the version.
            later: whether the version is after the kept head. If False, only the names in its actions are used.
        """
        before = len(self.replacements)
        self._read_replacements(actions)
        if version is not None:
            self.read_versions.add(version)
        if later:
            self._certain = self._certain and version == self._read_up_to + 1
            self._read_up_to = self._read_up_to if version is None else version
        for action in actions:
            match action:
                case Add():
                    self.named.setdefault(action.path, action)
                    if later:
                        self.live[action.path] = action
                        self.deleted.discard(action.path)
                        self._added_at[action.path] = self._read_up_to
                case Remove():
                    if later and self.live.pop(action.path, None) is None:
                        self._take_back(action.path, self.replacements[:before])
                    if action.path not in self.live:
                        self.deleted.add(action.path)
                case _:
                    self._read_progress(action, later=later)
        if later:
            self._merged_at |= {each.path: dict(self.merged) for each in actions if isinstance(each, Add)}

    def _take_back(self, path: str, replacements: list[Replacement]) -> None:
        """Undo the compactions that replaced the split at `path`. A later version removes this split.

        The split was live for the later version, so a lost restore has undone the compaction.
        """
        for each in replacements:
            if any(add.path == path for add in each.inputs):
                for output in each.outputs - self.deleted:
                    self.deleted.add(output)
                    if self.live.pop(output, None) is None:
                        self._take_back(output, replacements)

    def has_read(self, first: int, last: int) -> bool:
        """Return whether every version from `first` to `last` was read."""
        return all(version in self.read_versions for version in range(first, last + 1))

    def _read_replacements(self, actions: list[Action]) -> None:
        added: dict[str, list[Add]] = {}
        removed: dict[str, list[str]] = {}
        for action in actions:
            if isinstance(action, Add) and not action.dataChange:
                added.setdefault(_folder(action.path), []).append(action)
            elif isinstance(action, Remove):
                removed.setdefault(_folder(action.path), []).append(action.path)
        for folder, adds in added.items():
            known = self.named | self.live  # actions of live splits contain their deletion vectors
            inputs = [known[path] for path in removed.get(folder, ()) if path in known]
            whole = len(inputs) == len(removed.get(folder, ()))
            if whole and inputs and _rows(adds) == _rows(inputs):
                outputs = frozenset(each.path for each in adds)
                self.replacements.append(Replacement(outputs=outputs, inputs=tuple(inputs)))

    def _read_progress(self, action: Action, *, later: bool) -> None:
        match action:
            case IndexSegment() if not later:
                self.named_segments.setdefault(action.path, action)
            case Translation() if not later:
                self.named_translations.setdefault(action.path, action)
            case _ if not later:
                pass
            case Metadata():
                self.metadata = action
            case MergedGenerations():
                self._read_merge(action)
            case _:
                self.progress.apply(action)

    def _read_merge(self, action: MergedGenerations) -> None:
        """Read a merge.

        After a gap in the versions, only the last generation of the range certainly belongs to this commit.
        """
        before = self.merged.get(action.region, 0) if self._certain else action.generation - 1
        self._ranges.append(MergedRange(region=action.region, after=before, generation=action.generation))
        newest = max(action.generation, self.merged.get(action.region, 0))
        self.progress.apply(replace(action, generation=newest))
        self._certain = True

    def added_at(self, path: str) -> int:
        """Return the version that added a live split, according to the versions that were read."""
        return self._added_at.get(path, self._read_up_to)

    def merged_at(self, path: str) -> Mapping[str, int] | None:
        """Return the merge progress of the version that added `path`. The version must be newer than the kept log.

        Return None if no version after the kept part of the log added the split.

        Missing versions before the returned version may have merged further generations.
        """
        return self._merged_at.get(path)

    @property
    def merged(self) -> dict[str, int]:
        """The last merged generation of each region."""
        return self.progress.merged_generations

    @property
    def older(self) -> dict[str, Add]:
        """The splits that are in the log but not live."""
        return {path: add for path, add in self.named.items() if path not in self.live}

    def evidence(self, collected: Iterable[str], generations: Mapping[str, frozenset[int]]) -> Evidence:
        """Return the evidence that determines which found splits are live.

        `collected` are removed splits in the collector's plan.
        """
        live = frozenset(self.live)
        deleted = frozenset({*self.deleted, *collected} - live)
        return Evidence(
            live=live,
            deleted=deleted,
            merged=self.merged,
            ranges=tuple(self._ranges),
            generations=generations,
            added_at={path: version for path, version in self._added_at.items() if path in live},
        )


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _rows(adds: Iterable[Add]) -> int:
    return sum(add.visible_rows for add in adds)


@dataclass(slots=True, kw_only=True)
class Salvage:
    """The content of the repaired table, before its objects are checked.

    - `kept`: the part of the log that can be opened. `kept` is None if no part of the log can be opened.
    - `splits`, `segments`: the live splits and the live segments.
    - `older`: splits that only older kept versions reference.
    - `named_segments`, `named_translations`: segments and translations that any version references.
    - `left_out`: found splits that are not live, with the reason.
    - `unproven`: splits that the repair treats as live without proof of their commit in the log.
    - `unreadable`: the splits for which the repair cannot decide whether they are live, each with the reason.
    - `superseded`: splits without a remaining row, because lost merges superseded all of their rows.
    - `doubtful`: by region, the number of splits that may have deleted rows of lost merges.
    """

    kept: PreservedLog | None
    metadata: Metadata
    splits: dict[str, Add]
    segments: dict[str, IndexSegment]
    older: dict[str, Add] = field(default_factory=dict)
    txns: Transactions = field(default_factory=Transactions)
    fences: dict[str, int] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    unproven: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    superseded: tuple[Add, ...] = ()
    doubtful: Mapping[str, int] = field(default_factory=dict)
    lost_versions: tuple[range, ...] = ()
    named_segments: dict[str, IndexSegment] = field(default_factory=dict)
    named_translations: dict[str, Translation] = field(default_factory=dict)
    replacements: tuple[Replacement, ...] = ()


def salvage(store: ObjectStore, listing: Listing, check: LogCheck, regions: Mapping[str, RegionSalvage]) -> Salvage:
    """Return the content of the table. `regions` is the salvaged content of the table's regions.

    Raises:
        Unsupported: A newer release wrote some of the files.
        Corrupt: Neither the log nor a split contains the definition of the table.

    Cost:
        The requests of opening the kept part, and one GET per version file. If a part of the log is lost, also two GETs
        per split that no readable part names.
    """
    newer = next((each for each in check.findings if each.kind is Kind.NEWER_FORMAT), None)
    if newer is not None:
        raise Unsupported(
            f"{newer.found}. A repair by this release would lose this object. Repair with the newer release",
            key=newer.key,
        )
    kept = kept_part(store, check)
    known = _known(store, check, kept)
    lost = _lost_versions(listing, check, kept)
    reached = -1 if kept is None else kept.snapshot.version
    if kept is not None and known.has_read(reached + 1, check.newest):
        return _salvaged(known, kept, lost)
    found, unreadable = _found(store, listing, known, _table_id(known))
    found, doubtful = _later_than(reached, found, known)
    registered = {name: each.spec_id for name, each in regions.items() if each.spec_id is not None}
    by_hand = {name: BY_HAND_SPEC for name, spec_id in registered.items() if spec_id == BY_HAND_SPEC}
    spec_ids = registered | spec_ids_of_merges(found) | by_hand
    newest = max(spec_ids.values(), default=0)
    # A new region spec is used only after the merge of all generations of earlier specs (decision 0010). The earlier
    # generations are not merged again.
    generations = {
        name: each.complete for name, each in regions.items() if spec_ids.get(name, newest) in (newest, BY_HAND_SPEC)
    }
    choice = choose(found, known.evidence(_collected(store, listing), generations))
    metadata = known.metadata or metadata_of(store, found or newest_readable(store, listing, known.live, known.older))
    metadata = with_region_specs(metadata, newest, store, listing)
    result = _with_choice(_salvaged(known, kept, lost), choice, metadata, unreadable | doubtful)
    key = TableConfig.from_configuration(metadata.configuration).primary_key
    if not key:
        return result
    dated = [_dated(add, known, result, choice, spec_ids=spec_ids) for add in result.splits.values()]
    hidden = superseded(store, dated, key, merged=result.merged, regions=regions)
    splits = result.splits | {add.path: add for add in hidden.marked}
    for add in hidden.deleted:
        del splits[add.path]
    return replace(result, splits=splits, superseded=hidden.deleted, doubtful=hidden.doubtful)


def _known(store: ObjectStore, check: LogCheck, kept: PreservedLog | None) -> KnownLog:
    known = KnownLog(kept)
    for each in check.in_time:
        if kept is None:
            later = True
        elif each.number is not None:
            later = each.number > kept.snapshot.version
        else:
            later = each.timestamp > kept.snapshot.timestamp
        known.read(each.number, actions_of(store, each.place), later=later)
    return known


def _later_than(reached: int, found: list[FoundSplit], known: KnownLog) -> tuple[list[FoundSplit], dict[str, str]]:
    """Divide the found splits into two groups.

    The second group contains the splits that may come from a lost version up to version `reached`.

    The splits of the second group are not live in version `reached`.

    If a split of the first group replaced another split, the replaced split also belongs to the first group. The
    replaced split was live.
    """
    old = {each.path for each in found if not known.has_read(each.origin.planned_version + 1, reached)}
    old -= {path for each in found if each.path not in old for path in each.lineage.replaces}
    why = f"no readable version added the split, and the split is not live in version {reached}"
    return [each for each in found if each.path not in old], dict.fromkeys(sorted(old), why)


def _dated(add: Add, known: KnownLog, result: Salvage, choice: Choice, *, spec_ids: Mapping[str, int]) -> DatedSplit:
    """Return a live split with its position in the order of versions.

    The position is computed from the number of the version that added the split. If the version that added the split is
    unknown, the position is computed from the planned version of the split.
    """
    kept = result.kept
    before = {} if kept is None else dict(kept.snapshot.merged_generations)
    found = choice.live.get(add.path)
    if found is None:
        added_at, later = known.added_at(add.path), known.merged_at(add.path)
        if kept is not None and (add.path in kept.snapshot.splits or later is None):
            return DatedSplit(add=add, order=2 * added_at, progress=before, certain=True)
        whole = known.has_read(0 if kept is None else kept.snapshot.version + 1, added_at)
        return DatedSplit(add=add, order=2 * added_at, progress=later or {}, certain=whole)
    merged = found.lineage.merged
    # A compaction writes the rows that were live at its planned version. If a merge and a compaction have the same
    # planned version, the rows of the merge are newer.
    order = 2 * found.origin.planned_version + (found.lineage.operation != "compact")
    if merged is None:
        return DatedSplit(add=add, order=order, progress=before, certain=False)
    # A merge writes rows of its own region. Only regions with a newer region spec can change the rows that the merge
    # wrote. When the merge ran, no generation of a region with a later spec had been merged (decision 0010). With
    # manual regions, other regions can have the same keys. The repair does not know how far manual regions with the
    # same keys were merged when the merge ran.
    if BY_HAND_SPEC in spec_ids.values():
        return DatedSplit(add=add, order=order, progress={merged.region: merged.generation}, certain=False)
    own = spec_ids[merged.region]
    others = {region: last for region, last in result.merged.items() if spec_ids.get(region, own) <= own}
    progress = {**others, merged.region: merged.generation}
    return DatedSplit(add=add, order=order, progress=progress, certain=True)


def _salvaged(known: KnownLog, kept: PreservedLog | None, lost: tuple[range, ...]) -> Salvage:
    return Salvage(
        kept=kept,
        metadata=known.metadata or Metadata(id="", schemaString=""),
        splits=dict(known.live),
        segments=dict(known.progress.segments),
        older=known.older,
        txns=known.progress.txns,
        fences=known.progress.fences,
        merged=dict(known.merged),
        lost_versions=lost,
        named_segments=known.named_segments,
        named_translations=known.named_translations,
        replacements=tuple(known.replacements),
    )


def _with_choice(known: Salvage, choice: Choice, metadata: Metadata, unreadable: Mapping[str, str]) -> Salvage:
    kept = {path: add for path, add in known.splits.items() if path not in choice.replaced}
    return replace(
        known,
        metadata=metadata,
        splits=kept | {path: each.add for path, each in choice.live.items()},
        merged=dict(choice.merged),
        left_out=choice.left_out,
        unproven=choice.unproven,
        unreadable=unreadable,
    )


def _lost_versions(listing: Listing, check: LogCheck, kept: PreservedLog | None) -> tuple[range, ...]:
    """Return the versions that certainly existed but cannot be opened any more.

    Versions with a remaining object are returned one by one. Versions without a remaining object are returned as
    ranges, because a file with a wrong number can make the gap very large.
    """
    shown = {*listing.versions(KeyKind.VERSION), *(each.version for each in listing.checkpoints())}
    opens = range(0) if kept is None else range(kept.first, kept.snapshot.version + 1)
    sound = {each.version for each in check.checkpoints}
    one_by_one = [range(each, each + 1) for each in shown - sound if each not in opens]
    gaps = [each for gap in check.missing for each in _without(gap, shown) if each[0] not in opens]
    return tuple(sorted([*one_by_one, *gaps], key=lambda each: each[0]))


def _without(gap: range, shown: Iterable[int]) -> Iterator[range]:
    bounds = [gap[0] - 1, *sorted(each for each in shown if each in gap), gap.stop]
    yield from (range(low + 1, high) for low, high in pairwise(bounds) if low + 1 < high)


def _found(
    store: ObjectStore, listing: Listing, known: KnownLog, table_id: str | None
) -> tuple[list[FoundSplit], dict[str, str]]:
    """Read the splits in the store that no readable version of the log adds.

    Return the readable splits of this table, and for every other split the reason why it cannot be used.
    """
    found: list[FoundSplit] = []
    unreadable: dict[str, str] = {}
    for parsed in listing.of(KeyKind.SPLIT):
        if parsed.key in known.named:
            continue
        try:
            found.append(read_found(store, listing, parsed.key))
        except DAMAGE as error:
            unreadable[parsed.key] = error.found
    ids = Counter(each.origin.table_id for each in found)
    owner = table_id or next((name for name, _ in ids.most_common(1)), None)
    foreign = {
        each.path: f"the split belongs to the table {each.origin.table_id}"
        for each in found
        if each.origin.table_id != owner
    }
    return [each for each in found if each.path not in foreign], unreadable | foreign


def _table_id(known: KnownLog) -> str | None:
    return None if known.metadata is None else known.metadata.id


def _collected(store: ObjectStore, listing: Listing) -> list[str]:
    """Return the splits that a commit removed according to the collector's plan.

    Orphans in the plan are not returned, because they may be committed by now.
    """
    if gc_candidates_key() not in listing.objects:
        return []
    try:
        plan = documents.decode_gc_plan(store.get(gc_candidates_key()).data)
    except DAMAGE:
        return []
    return [each.key for each in plan.candidates.values() if each.reason is Reason.REMOVED_SPLIT]
