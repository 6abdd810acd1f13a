"""Change of the region spec of a table (docs/architecture/ingestion.md, "Regions", decision 0010).

The commit of a new spec requires that all regions of the previous spec are merged completely. These regions are closed
at this point. So all rows of the previous spec are in the base. None of these rows can replace a newer row of the new
spec.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import (
    CommitConflict,
    InvalidInput,
    RegionClosed,
    Unavailable,
    WriterFenced,
)
from storage_core.data.settings.layout import BY_HAND_SPEC, REGIONS_KEY, Region, RegionField, RegionSpec, specs_to_text
from storage_core.log.conflicts import MergeProgress
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.write.region.manifest import check_epoch, commit, read_latest
from storage_core.write.region.spec import (
    check_spec,
    close_spec,
    closing_region,
    known_regions,
    only_region,
    read_registry,
)
from storage_core.write.region.steps import merge_regions
from storage_core.write.region.writer import RegionWriter

_logger = logging.getLogger(__name__)


_ATTEMPTS = 10


def change_regions(log: TransactionLog, fields: tuple[RegionField, ...], *, quarantine: bool = False) -> Snapshot:
    """Make `fields` the fields of the table's current region spec. Return the snapshot with this spec.

    Nothing happens if the spec already has these fields. Otherwise the old regions are merged in this process, closed,
    and merged again. Then the new spec is committed. If the call is interrupted, a second call finishes the change. A
    region that cannot be merged is not closed and continues to accept rows.

    Args:
        quarantine: whether to quarantine records that cannot be merged. This is the only way to merge a closed region
            with such records (decision 0010).

    Raises:
        InvalidInput: the fields cannot divide the table.
        CommitConflict: other processes committed changes of the same rows in every attempt.

    The function also raises the errors of the merge and of `close_regions`.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        snapshot = log.snapshot()
        config = snapshot.config
        if config.kind != "keyed":
            raise InvalidInput(
                f"{log.store.uri}: regions divide the primary key, and this table has no primary key. Leave out the "
                "regions, or create the table again with a primary key",
                table=snapshot.table_id,
            )
        if fields == config.region_spec.fields and not is_ending(log.store, snapshot):
            return snapshot
        spec = RegionSpec(id=config.region_spec.id + 1, fields=fields)
        check_spec(spec, snapshot.schema, config.primary_key)
        try:
            # The function merges before it closes the regions. If the merge fails, the region still accepts rows that
            # can fix the fault. A closed region cannot be reopened.
            _flush_everything(log, snapshot)
            _merge_everything(log, quarantine=quarantine)
            progress = close_regions(log.store, snapshot, successor=spec.id, clock=log.clock, ids=log.ids)
            _merge_everything(log, quarantine=quarantine)
            _commit_spec(log, spec, progress)
        except CommitConflict:
            if attempt == _ATTEMPTS:
                raise
    return log.snapshot()


def _flush_everything(log: TransactionLog, snapshot: Snapshot) -> None:
    """Write all acknowledged rows of the old regions as generations.

    Only a merge of generations shows whether the rows can be merged.
    """
    for region in _of_spec(log.store, snapshot):
        latest = read_latest(log.store, region.id)
        if latest is None or latest.closed_by:
            continue
        with suppress(WriterFenced, RegionClosed):  # A writer is active, and `close_regions` will flush its rows.
            writer = RegionWriter.open(log.store, snapshot, clock=log.clock, ids=log.ids, region=region)
            with writer:
                writer.flush()


def _of_spec(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions of the old spec. Manual regions have no spec and do not change."""
    return [each for each in known_regions(store, snapshot) if each.spec_id != BY_HAND_SPEC]


def _merge_everything(log: TransactionLog, *, quarantine: bool) -> None:
    snapshot = log.snapshot()
    own = {each.id for each in _of_spec(log.store, snapshot)}
    merge_regions(log, snapshot, own, quarantine=quarantine)


def _commit_spec(log: TransactionLog, spec: RegionSpec, progress: Sequence[MergeProgress]) -> None:
    snapshot = log.snapshot()
    specs = snapshot.config.region_specs
    if specs[-1].id >= spec.id:
        raise CommitConflict(
            f"{log.store.uri}: another process created region spec {specs[-1].id} meanwhile. Plan again",
            table=snapshot.table_id,
        )
    settings = {**snapshot.metadata.configuration, REGIONS_KEY: specs_to_text((*specs, spec))}
    changed = replace(snapshot.metadata, configuration=settings)
    log.commit(snapshot, [changed], operation="CONFIGURE", requirements=progress)


def is_ending(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Return whether a change of the current spec has begun.

    In this case, the spec accepts no more rows. 1 to 3 requests.
    """
    spec = snapshot.config.region_spec
    if spec.fields:
        return spec.id in read_registry(store).closed
    manifest = read_latest(store, only_region(snapshot.table_id, spec).id)
    return manifest is not None and manifest.closed_by > 0


def close_regions(
    store: ObjectStore, snapshot: Snapshot, *, successor: int, clock: Clock, ids: Ids
) -> tuple[MergeProgress, ...]:
    """Close every region of the snapshot's current spec.

    Return the progress that the merges of these regions must reach.

    After the call, no row can be added to the regions, and no region can be added to the spec. The call claims each
    region and so fences the region's writer. Then the call flushes the log and marks the region as closed in the
    manifest. Every acknowledged row is then in a generation. A second call changes nothing. Raises `Unavailable` if
    other processes claim a region in every attempt. About 15 requests per region.
    """
    spec = snapshot.config.region_spec
    close_region = partial(_close, store, snapshot, successor=successor, clock=clock, ids=ids)
    if not spec.fields:
        return (close_region(only_region(snapshot.table_id, spec)),)
    # The manifest of the closing region also marks the spec as closed, in case the registry is lost. If the registry is
    # lost, another process may add a region before this manifest is written. The second call of `close` also returns a
    # region that was added before the manifest was written (decision 0010).
    closing = closing_region(snapshot.table_id, spec)
    close = partial(close_spec, store, closing, successor, clock=clock, ids=ids)
    close()
    close_region(closing)
    return tuple(close_region(each) for each in close().of_spec(spec.id))


def _close(
    store: ObjectStore, snapshot: Snapshot, region: Region, *, successor: int, clock: Clock, ids: Ids
) -> MergeProgress:
    for _ in range(_ATTEMPTS):
        latest = read_latest(store, region.id)
        if latest is not None and latest.closed_by:
            return MergeProgress(region.id, latest.current_generation - 1)
        try:
            with RegionWriter.open(store, snapshot, clock=clock, ids=ids, region=region) as writer:
                writer.flush()
                held = check_epoch(store, region.id, writer.epoch)
                closed = replace(held, version=held.version + 1, writer_id=ids.uuid(), closed_by=successor)
                if commit(store, closed, clock=clock):
                    _logger.info("region %s: closed, region spec %d follows", region.id, successor)
        except (WriterFenced, RegionClosed):
            continue  # Another process claimed or closed the region in the meantime.
    raise Unavailable(
        f"region {region.id}: other writers claimed the region during each of {_ATTEMPTS} attempts to close the "
        "region. Stop the other writers, or try again later",
        region=region.id,
    )
