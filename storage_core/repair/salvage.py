"""What of a damaged log can be kept as it is, and which splits are live where it cannot
(docs/architecture/transaction-log.md, "History").

The longest stretch of sound version files that something opens is kept. What lies behind a hole in it is read action
by action, and where that says nothing the splits speak for themselves (`lineage_replay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from storage_core.errors import Unsupported
from storage_core.formats import gc_plan
from storage_core.formats.keys import KeyKind, gc_candidates_key
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.kept_log import Kept, actions_of, kept_part
from storage_core.fsck.log_check import LogCheck, checkpoints_in
from storage_core.fsck.report import DAMAGE, Kind
from storage_core.log.actions import Add, IndexSegment, Metadata, Translation
from storage_core.log.transactions import Transactions
from storage_core.objectstore.contract import ObjectStore
from storage_core.repair.found_settings import metadata_of, newest_readable, spec_ids_of_merges, with_region_specs
from storage_core.repair.found_split import FoundSplit, read_found
from storage_core.repair.known_log import KnownLog, Replacement
from storage_core.repair.lineage_replay import Choice, choose
from storage_core.repair.lost_merges import DatedSplit, superseded
from storage_core.repair.region_salvage import RegionSalvage
from storage_core.settings.region_fields import BY_HAND_SPEC
from storage_core.settings.table import TableConfig


@dataclass(slots=True, kw_only=True)
class Salvage:
    """What the repaired table consists of, before its objects are looked at.

    `kept` is None when no part of the log opens. `splits` and `segments` are live; `older` are splits that only older
    kept versions name, and `named_segments` and `named_translations` what any version names of these. `left_out` says
    of found splits why they are not live, `unproven` are live with nothing that says so but the files, `unreadable`
    cannot be judged. Of `superseded` merges whose versions are lost have superseded every row. `doubtful` counts, per
    region, the splits that may hold rows which such merges have deleted.
    """

    kept: Kept | None
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


def salvage(store: ObjectStore, inventory: Inventory, check: LogCheck, regions: Mapping[str, RegionSalvage]) -> Salvage:
    """Return what the table consists of; `regions` are its regions as they were found.

    Requests: those of opening the kept part, one GET per version file, and, when a part of the log is lost, two per
    split that no readable part names. Raises `Unsupported` beside files of a newer release, `Corrupt` when neither the
    log nor any split says what the table is.
    """
    newer = next((each for each in check.findings if each.kind is Kind.NEWER_FORMAT), None)
    if newer is not None:
        raise Unsupported(f"{newer.found}; a repair by this release would lose it", key=newer.key)
    kept = kept_part(store, check)
    known = _known(store, check, kept)
    lost = _lost_versions(inventory, check, kept)
    reached = -1 if kept is None else kept.snapshot.version
    if kept is not None and known.has_read(reached + 1, check.newest):
        return _salvaged(known, kept, lost)
    found, unreadable = _found(store, inventory, known, _table_id(known))
    found, doubtful = _later_than(reached, found, known)
    registered = {name: each.spec_id for name, each in regions.items() if each.spec_id is not None}
    by_hand = {name: BY_HAND_SPEC for name, spec_id in registered.items() if spec_id == BY_HAND_SPEC}
    spec_ids = registered | spec_ids_of_merges(found) | by_hand
    newest = max(spec_ids.values(), default=0)
    # A region spec follows when those before it are merged whole (decision 0040): nobody merges them again.
    generations = {
        name: each.complete for name, each in regions.items() if spec_ids.get(name, newest) in (newest, BY_HAND_SPEC)
    }
    choice = choose(found, known.evidence(_collected(store, inventory), generations))
    metadata = known.metadata or metadata_of(store, found or newest_readable(store, inventory, known.live, known.older))
    metadata = with_region_specs(metadata, newest, store, inventory)
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


def _known(store: ObjectStore, check: LogCheck, kept: Kept | None) -> KnownLog:
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
    """Split off what a lost version up to `reached` may have added: it is not live there, so another removed it.

    Unless something that was planned on a later version replaces it: then it was live there.
    """
    old = {each.path for each in found if not known.has_read(each.origin.planned_version + 1, reached)}
    old -= {path for each in found if each.path not in old for path in each.lineage.replaces}
    why = f"a lost version added it or none did, and it is not live in version {reached}"
    return [each for each in found if each.path not in old], dict.fromkeys(sorted(old), why)


def _dated(add: Add, known: KnownLog, result: Salvage, choice: Choice, *, spec_ids: Mapping[str, int]) -> DatedSplit:
    """Where a live split belongs in time: by the version that added it, or, behind those, that it was planned on."""
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
    # The rows of a compaction are those that were live where it was planned: a merge that was planned there is newer.
    order = 2 * found.origin.planned_version + (found.lineage.operation != "compact")
    if merged is None:
        return DatedSplit(add=add, order=order, progress=before, certain=False)
    # A merge writes rows of its own region. No other region's records touch them but those of later region specs,
    # nothing of which was merged yet (decision 0040).
    # Where regions are made by hand, others may follow with the same keys: what they had merged by then is not known.
    if BY_HAND_SPEC in spec_ids.values():
        return DatedSplit(add=add, order=order, progress={merged.region: merged.generation}, certain=False)
    own = spec_ids[merged.region]
    others = {region: last for region, last in result.merged.items() if spec_ids.get(region, own) <= own}
    progress = {**others, merged.region: merged.generation}
    return DatedSplit(add=add, order=order, progress=progress, certain=True)


def _salvaged(known: KnownLog, kept: Kept | None, lost: tuple[range, ...]) -> Salvage:
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


def _lost_versions(inventory: Inventory, check: LogCheck, kept: Kept | None) -> tuple[range, ...]:
    """The versions that existed as far as anybody knows, and that cannot be opened any more.

    Those that left something one by one, the others as they are missing: a stray number may be anything.
    """
    shown = {*inventory.versions(KeyKind.VERSION), *(each.version for each in checkpoints_in(inventory))}
    opens = range(0) if kept is None else range(kept.first, kept.snapshot.version + 1)
    sound = {each.version for each in check.checkpoints}
    one_by_one = [range(each, each + 1) for each in shown - sound if each not in opens]
    gaps = [each for gap in check.missing for each in _without(gap, shown) if each[0] not in opens]
    return tuple(sorted([*one_by_one, *gaps], key=lambda each: each[0]))


def _without(gap: range, shown: Iterable[int]) -> Iterator[range]:
    bounds = [gap[0] - 1, *sorted(each for each in shown if each in gap), gap.stop]
    yield from (range(low + 1, high) for low, high in pairwise(bounds) if low + 1 < high)


def _found(
    store: ObjectStore, inventory: Inventory, known: KnownLog, table_id: str | None
) -> tuple[list[FoundSplit], dict[str, str]]:
    """Read every split that no readable version adds; those of another table say so and are not judged further."""
    found: list[FoundSplit] = []
    unreadable: dict[str, str] = {}
    for parsed in inventory.of(KeyKind.SPLIT):
        if parsed.key in known.named:
            continue
        try:
            found.append(read_found(store, inventory, parsed.key))
        except DAMAGE as error:
            unreadable[parsed.key] = error.found
    ids = Counter(each.origin.table_id for each in found)
    owner = table_id or next((name for name, _ in ids.most_common(1)), None)
    foreign = {each.path: f"it is of table {each.origin.table_id}" for each in found if each.origin.table_id != owner}
    return [each for each in found if each.path not in foreign], unreadable | foreign


def _table_id(known: KnownLog) -> str | None:
    return None if known.metadata is None else known.metadata.id


def _collected(store: ObjectStore, inventory: Inventory) -> list[str]:
    """The splits that the collector's plan says a commit removed. An orphan of then may be committed by now."""
    if gc_candidates_key() not in inventory.objects:
        return []
    try:
        plan = gc_plan.decode(store.get(gc_candidates_key()).data)
    except DAMAGE:
        return []
    return [each.key for each in plan.candidates.values() if each.reason is gc_plan.Reason.REMOVED_SPLIT]
