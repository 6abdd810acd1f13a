"""What a lookup by key will ask: its regions are asked for that, of the base only what the log and footers tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from storage_core.engine.statement import TABLE
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.meter import MeteredStore, RequestMeter
from storage_core.read import key_splits
from storage_core.read.as_of import At
from storage_core.read.indexed_keys import KeyAnswer
from storage_core.read.lookup import key_index, keys_in, left_to_base
from storage_core.read.lookup_plan import LookupPlan, RegionPlan
from storage_core.read.plan import TablePlan
from storage_core.read.pruning import PruneStep
from storage_core.read.regions import holding_regions
from storage_core.read.verified import Verified
from storage_core.read.view import View
from storage_core.rows.keys import Positions
from storage_core.split import chunk_checksums, key_places
from storage_core.split.group_bounds import admitting
from storage_core.split.kept_values import KeptValues
from storage_core.split.leaves import leaves_of
from storage_core.split.ranges import Footers, requests_for
from storage_core.split.read import open_split


def plan(
    store: MeteredStore, view: View, wanted: pa.Table, *, at: At | None, consistency: str, verified: Verified
) -> LookupPlan:
    """Return what a lookup of these keys would ask, as rows with the key columns. Nothing that is read is kept.

    Requests: those for what is newer than the base, as the lookup makes them; one per Bloom filter of a generation that
    the lookup need not ask and of which there is no copy; those of a primary-key index, as the lookup makes them; of
    each split that may hold a key one of its footer, unless that is held, or of all of it where it is small.
    """
    meter, apart = RequestMeter(), view.apart()
    with store.counted_by(meter):
        snapshot, captured = apart.captured(at, consistency, partial(holding_regions, store, keys=wanted))
        wanted = keys_in(snapshot, wanted)
        records = None if captured is None else captured.above(snapshot, keys=wanted)
    regions = () if captured is None else captured.regions
    return LookupPlan(
        consistency=consistency,
        unmerged_requests=sum(meter.requests.values()),
        regions=tuple(
            RegionPlan(
                region_id=each.region,
                manifest_version=0 if each.manifest is None else each.manifest.version,
                log_entries=len(each.entries),
                generations=len(admitted.unmerged),
                copied_filters=sum(bool(held.filter_bytes) for held in admitted.unmerged),
                admitted_by_bounds=admitted.by_bounds,
                admitted_by_filters=admitted.by_filters,
            )
            for each in regions
            for admitted in [each.admitting(snapshot, wanted)]
        ),
        base=_Base(store, snapshot, verified, apart.kept).plan(left_to_base(records, wanted), records),
        raw_logs=() if captured is None else captured.raw_parts,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What is read of a split at most: byte ranges, unless it is a local file or read whole."""

    requests: int
    bytes: int
    is_whole: bool
    groups: int
    groups_left_out: int


@dataclass(frozen=True, slots=True)
class _Base:
    """The splits of a snapshot, of which some rows are wanted."""

    store: MeteredStore
    snapshot: Snapshot
    verified: Verified
    kept: KeptValues

    def plan(self, wanted: pa.Table, records: pa.Table | None) -> TablePlan:
        """What is read of them for the keys that no newer record tells whole."""
        snapshot = self.snapshot
        splits = tuple(key_splits.candidates(snapshot, wanted, self.kept)) if wanted.num_rows else ()
        out = len(snapshot.splits) - len(splits), snapshot.bytes - sum(add.size for add in splits)
        steps = [PruneStep("bounds of keys" if wanted.num_rows else "newer records", *out)]
        index = key_index(self.store, snapshot, wanted, splits=len(splits), verified=self.verified, kept=self.kept)
        tally = None if index is None else index.tally()
        answers = {add.path: KeyAnswer() if index is None else index.of_split(add) for add in splits}
        if tally is not None:
            splits = tuple(add for add in splits if not tally.add(add, answers[add.path]))
            steps.append(tally.step)
        parts = [self._part(add, wanted, answers[add.path].places) for add in splits]
        if parts:
            steps.append(PruneStep("row groups", 0, 0, sum(each.groups_left_out for each in parts)))
        return TablePlan(
            name=TABLE,
            version=snapshot.version,
            live_splits=len(snapshot.splits),
            live_bytes=snapshot.bytes,
            columns=tuple(snapshot.schema.names) if splits else (),
            steps=tuple(steps),
            splits=splits,
            whole_splits=sum(each.is_whole for each in parts),
            row_groups=sum(each.groups for each in parts if not each.is_whole),
            read_bytes=sum(each.bytes for each in parts) + (0 if tally is None else tally.bytes),
            requests=sum(each.requests for each in parts) + (0 if tally is None else tally.requests),
            newer_records=0 if records is None else records.num_rows,
        )

    def _part(self, add: Add, wanted: pa.Table, named: Positions | None) -> _Part:
        path = self.store.local_path(add.path)
        held = self.verified.footers.held(add) is not None
        footers = self.verified.footers if held else Footers()
        opened = open_split(self.store, add.as_written, whole=False, file_path=path, footers=footers)
        groups = admitting(opened.bounds, opened.row_groups, wanted)
        if named is not None:
            groups = np.unique(np.searchsorted(opened.first_rows, named, side="right") - 1).tolist()
        vectors = int(add.deleted_rows is not None and add.deleted_rows.path is not None)
        left_out = opened.row_groups - len(groups)
        if not opened.is_ranged:
            is_local = path is not None
            return _Part(
                requests=vectors + (not is_local),
                bytes=add.size,
                is_whole=not is_local,
                groups=len(groups),
                groups_left_out=left_out,
            )
        footer_bytes = 0 if held else (add.footerEndOffset or 0) - (add.footerStartOffset or 0)
        places = chunk_checksums.places(opened.footer)
        keys = leaves_of(opened.footer, wanted.column_names)

        def ranges() -> Iterator[tuple[int, int]]:
            for group in groups:
                if named is None and not key_places.is_kept(add, group, self.kept):
                    yield from requests_for(places[group, keys])
                yield from requests_for(places[group])

        found = list(ranges())
        return _Part(
            requests=vectors + (not held) + len(found),
            bytes=footer_bytes + sum(end - start for start, end in found),
            is_whole=False,
            groups=len(groups),
            groups_left_out=left_out,
        )
