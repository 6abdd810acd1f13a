"""Splits without a log: read the metadata in a split file, and verify it against the rows and checksums.

If the log is lost, the split files contain the definition of the table: schema, settings and region specs. `choose`
determines which of the splits are live.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.base.errors import Corrupt, InvalidInput, raise_refused
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.parquet_footer import require_valid_chunks
from storage_core.data.rows import statistics
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.settings.layout import REGIONS_KEY, WHOLE_TABLE_SPEC
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Metadata
from storage_core.maintain.findings import DAMAGE
from storage_core.maintain.table_objects import Listing
from storage_core.split import verification
from storage_core.split.metadata import FileOrigin, Lineage, MergedRange, add_of, read_origin, require_checksum
from storage_core.split.read import conform_split, open_split
from storage_core.split.verification import entries_of
from storage_core.split.writer import with_file_metrics
from storage_core.store.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSplit:
    """A valid split outside the readable parts of the log: its action and its origin."""

    add: Add
    origin: FileOrigin

    @property
    def path(self) -> str:
        """The key of the split."""
        return self.add.path

    @property
    def lineage(self) -> Lineage:
        """The operation that wrote the split, and the splits that it replaced."""
        return self.origin.lineage


def read_found(store: ObjectStore, listing: Listing, path: str) -> FoundSplit:
    """Return the split at `path` from the metadata in its file.

    The checksums of every page, every column chunk and the metadata are verified. The rows must agree with the
    statistics, and the columns must have the types of the table.

    Raises:
        Corrupt: A check failed, or an early 0.1 release wrote the file. Such a file does not describe its table.
        Unavailable: There is not enough memory.

    Cost:
        Two GETs of the whole file, which is in memory.
    """
    data = pa.py_buffer(store.get(path).data)
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
        require_valid_chunks(footer, data.size)
        metadata = entries_of(footer, path)
    except (pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        raise_refused(path, error)
        raise Corrupt(f"{path}: not a readable Parquet file: {error}", key=path) from error
    require_checksum(metadata, path)
    if verification.CHECKSUMS_KEY in metadata and verification.checksums_entry(data, footer).items() - metadata.items():
        raise Corrupt(f"{path}: its column chunks do not have the checksums that it records", key=path)
    verification.recorded_vector_pages(metadata, footer, path)
    origin = read_origin(metadata, path)
    if origin is None:
        raise Corrupt(f"{path}: written by an early 0.1 release, whose splits do not describe their table", key=path)
    modified_ms = listing.objects[path].last_modified_ms
    add = with_file_metrics(add_of(metadata, path, size=data.size, modification_ms=modified_ms), data)
    rows = open_split(store, add).read()
    try:
        conform_split(rows, from_schema_string(origin.table_schema))
    except InvalidInput as error:
        raise Corrupt(f"{path}: {error}", key=path) from error
    metrics = statistics.compute(rows, TableConfig.from_configuration(origin.configuration).string_cut)
    if (add.minValues, add.maxValues, add.nullCounts) != (metrics.min_values, metrics.max_values, metrics.null_counts):
        raise Corrupt(f"{path}: its rows do not fit the statistics in its metadata", key=path)
    if wrong := statistics.mismatches(rows, add.columnRegexes or {}):
        raise Corrupt(f"{path}: {wrong[0]}", key=path)
    return FoundSplit(add=add, origin=origin)


def newest_readable(store: ObjectStore, listing: Listing, *paths: Iterable[str]) -> list[FoundSplit]:
    """Return the newest readable split of the first group that has readable splits, or an empty list."""
    found = chain.from_iterable(_newest_first(store, listing, group) for group in paths)
    first = next(found, None)
    return [] if first is None else [first]


def metadata_of(store: ObjectStore, found: Iterable[FoundSplit]) -> Metadata:
    """Return the metadata of the split with the newest planned version. Raises `Corrupt` if there is no split."""
    newest = max(found, key=lambda each: (each.origin.planned_version, each.path), default=None)
    if newest is None:
        raise Corrupt(
            f"{store.uri}: neither the log nor a split contains a readable description of the table",
            advice="restore a copy, or write the data into a new table",
            uri=store.uri,
        )
    origin = newest.origin
    return Metadata(
        id=origin.table_id,
        schemaString=origin.table_schema,
        partitionColumns=TableConfig.from_configuration(origin.configuration).partition_columns,
        configuration=origin.configuration,
    )


def spec_ids_of_merges(found: Iterable[FoundSplit]) -> dict[str, int]:
    """Return the spec id of each region whose merge wrote one of the splits."""
    return {each.lineage.merged.region: _spec_id(each.origin) for each in found if each.lineage.merged is not None}


def with_region_specs(metadata: Metadata, newest: int, store: ObjectStore, listing: Listing) -> Metadata:
    """Return the metadata with the region specs up to `newest`. The function reads specs of lost versions from a split.

    `newest` is the highest spec id of a region. If no split has this spec, the metadata is returned unchanged, and no
    region of the spec is merged.

    Cost:
        No request if the metadata has the spec. Otherwise the requests of `read_found` per split, newest first, until a
        split has the spec.
    """
    if newest <= max(_spec_id(metadata), WHOLE_TABLE_SPEC):
        return metadata
    for each in _newest_first(store, listing, [parsed.key for parsed in listing.of(KeyKind.SPLIT)]):
        if each.origin.table_id == metadata.id and _spec_id(each.origin) >= newest:
            specs = each.origin.configuration[REGIONS_KEY]
            return replace(metadata, configuration={**metadata.configuration, REGIONS_KEY: specs})
    return metadata


def _spec_id(settings: Metadata | FileOrigin) -> int:
    return TableConfig.from_configuration(settings.configuration).region_spec.id


def _newest_first(store: ObjectStore, listing: Listing, paths: Iterable[str]) -> Iterator[FoundSplit]:
    there = [path for path in paths if path in listing.objects]
    for path in sorted(there, key=lambda each: (-listing.objects[each].last_modified_ms, each)):
        try:
            yield read_found(store, listing, path)
        except DAMAGE:
            continue  # the repair does not copy a damaged split, and reports the split as lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts from other sources: live and removed splits of the readable log, merge progress and generations.

    - `live`, `deleted`: the live splits and the removed splits according to the readable log.
    - `merged`: the last merged generation, by region.
    - `ranges`: the generations that readable commits merged. No other merge of these generations was committed.
    - `generations`: by region, the complete generations. Complete generations can be merged again.
    - `added_at`: for each live split, the version that added the split. If a rewrite that was planned before this
      version replaced the split, a restore has undone the rewrite.
    """

    live: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    merged: Mapping[str, int] = field(default_factory=dict)
    ranges: tuple[MergedRange, ...] = ()
    generations: Mapping[str, frozenset[int]] = field(default_factory=dict)
    added_at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of `choose`: the live splits, the rejected splits with the reasons, and the replaced splits.

    - `replaced`: splits in `Evidence.live` that one of the found splits has replaced.
    - `unproven`: live splits without proof that they were committed.
    - `merged`: the merge progress of every region.
    """

    live: Mapping[str, FoundSplit]
    left_out: Mapping[str, str]
    replaced: frozenset[str]
    unproven: tuple[str, ...]
    merged: Mapping[str, int]


def choose(found: Sequence[FoundSplit], evidence: Evidence) -> Choice:
    """Return which of the found splits are live. The result does not depend on the order of `found`.

    The function replays the rewrites in the metadata of the files. The outputs and inputs of a rewrite exist together
    for weeks. A split is therefore not live if another split replaces it. The outputs of a killed rewrite and of its
    second run can also exist together. If a rewrite was killed and repeated, the rewrite counts once. A rewrite without
    proof of its commit is accepted only if it changes no row. A complete compaction changes no row. A merge whose
    records no longer exist also counts as a rewrite that changes no row.
    """
    floor = dict(evidence.merged)
    while True:
        replay = _Replay(found, evidence, floor)
        replay.run()
        if replay.merged == floor:  # Otherwise a rejected merge may have a lower generation than an accepted merge.
            return replay.choice()
        floor = dict(replay.merged)


@dataclass(slots=True)
class _Group:
    """The outputs of one operation. All outputs were committed together, or none of them."""

    name: str
    members: list[FoundSplit]

    @property
    def inputs(self) -> dict[str, int]:
        """The splits that the operation replaces, with their numbers of rows."""
        return {path: rows for each in self.members for path, rows in each.lineage.replaces.items()}

    @property
    def merged(self) -> MergedRange | None:
        """The generations that the operation merged."""
        return self.members[0].lineage.merged

    @property
    def order(self) -> tuple[int, str]:
        """The sort key. Operations with a lower planned version come first."""
        return self.members[0].origin.planned_version, self.name

    @property
    def is_complete(self) -> bool:
        """Whether the outputs of a compaction have the same number of rows as its inputs."""
        return sum(each.add.numRecords or 0 for each in self.members) == sum(self.inputs.values())


class _Replay:
    def __init__(self, found: Sequence[FoundSplit], evidence: Evidence, floor: Mapping[str, int]) -> None:
        self._found = {each.path: each for each in sorted(found, key=lambda each: each.path)}
        self._evidence, self._floor = evidence, floor
        self._named = {path for each in found for path in each.lineage.replaces}
        self._live = set(evidence.live)
        self._consumed = set(evidence.deleted)
        self._ranges = list(evidence.ranges)
        self._unproven: list[str] = []
        self._left_out: dict[str, str] = {}
        self.merged = dict(floor)

    def run(self) -> None:
        groups = _groups(self._found.values())
        for each in self._found.values():
            if each.lineage.operation_id is None:
                self._take([each], proven=self._is_proven([each]))
        for group in _in_order(groups, self._is_proven):
            reason = self._objection(group)
            if reason is not None:
                self._left_out |= {each.path: reason for each in group.members}
                continue
            planned, _ = group.order
            inputs = {path for path in group.inputs if self._evidence.added_at.get(path, -1) <= planned}
            self._consumed |= inputs
            self._live -= inputs
            self._take(group.members, proven=self._is_proven(group.members))
            if group.merged is not None:
                self._ranges.append(group.merged)
                before = self.merged.get(group.merged.region, 0)
                self.merged[group.merged.region] = max(before, group.merged.generation)

    def choice(self) -> Choice:
        live = self._live - self._evidence.deleted
        deleted = dict.fromkeys(self._found.keys() & self._consumed, "another split replaced this split")
        deleted |= dict.fromkeys(self._found.keys() & self._evidence.deleted, "a later version removed this split")
        return Choice(
            live={path: each for path, each in self._found.items() if path in live},
            left_out=self._left_out | deleted,
            replaced=frozenset(self._evidence.live & self._consumed),
            unproven=tuple(path for path in self._unproven if path in live),
            merged=self.merged,
        )

    def _take(self, members: Iterable[FoundSplit], *, proven: bool) -> None:
        for each in members:
            if each.path not in self._consumed:
                self._live.add(each.path)
                if not proven:
                    self._unproven.append(each.path)

    def _is_proven(self, members: Iterable[FoundSplit]) -> bool:
        """Return whether the splits were certainly committed.

        A plan reads only live splits. So a split was certainly committed if an operation replaced it or a commit
        removed it.
        """
        return any(each.path in self._named or each.path in self._evidence.deleted for each in members)

    def _objection(self, group: _Group) -> str | None:
        if self._is_proven(group.members):
            return None
        if group.inputs.keys() & self._consumed:
            return "another rewrite of the same splits was committed"
        intact = group.inputs.keys() <= self._live
        merged = group.merged
        if merged is None:
            wanting = intact and not group.is_complete
            return (
                "the compaction is not complete, and the splits that the compaction replaces exist" if wanting else None
            )
        if any(each.region == merged.region and _overlap(each, merged) for each in self._ranges):
            return "another merge took the same generations"
        at_hand = self._evidence.generations.get(merged.region, frozenset())
        again = set(range(merged.after + 1, merged.generation + 1)) <= at_hand
        if intact and again and merged.generation > self._floor.get(merged.region, 0):
            return "the generations of this merge exist, and are merged again"
        return None


def _groups(found: Iterable[FoundSplit]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for each in found:
        if each.lineage.operation_id is not None:
            groups.setdefault(each.lineage.operation_id, _Group(each.lineage.operation_id, [])).members.append(each)
    return sorted(groups.values(), key=lambda group: group.order)


def _in_order(groups: Sequence[_Group], is_proven: Callable[[Iterable[FoundSplit]], bool]) -> Iterator[_Group]:
    """Yield each group after the groups that wrote its inputs.

    If several groups are ready, groups with proof of their commit come before groups without proof.
    """
    maker = {each.path: group.name for group in groups for each in group.members}
    by_name = {group.name: group for group in groups}
    waiting = {group.name: {maker[path] for path in group.inputs if path in maker} - {group.name} for group in groups}
    followers: dict[str, list[str]] = {}
    for name, needed in waiting.items():
        for other in needed:
            followers.setdefault(other, []).append(name)
    ready = [(not is_proven(group.members), group.order) for group in groups if not waiting[group.name]]
    heapq.heapify(ready)
    while ready:
        _, (_, name) = heapq.heappop(ready)
        yield by_name.pop(name)
        for follower in followers.get(name, ()):
            waiting[follower].discard(name)
            if not waiting[follower]:
                heapq.heappush(ready, (not is_proven(by_name[follower].members), by_name[follower].order))
    # Names are never reused. So an operation cannot replace an output of a later operation. If the metadata of a group
    # nevertheless lists the output of a later operation as replaced, the group comes last.
    yield from by_name.values()


def _overlap(one: MergedRange, other: MergedRange) -> bool:
    return one.after < other.generation and other.after < one.generation
