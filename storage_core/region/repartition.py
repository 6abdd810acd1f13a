"""Ending a region spec, so that another may follow (docs/architecture/ingestion.md, "Regions"; decision 0040).

The rule: a spec becomes current in a commit that demands that every region of the spec before it is merged whole. As
those regions are closed by then, nothing of theirs is ever outside the base again, and no row of theirs can come over
a newer one that was written under the new spec.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import CommitConflict, InvalidInput, RegionClosed, Unavailable, WriterFenced
from storage_core.ids import Ids
from storage_core.log.conflicts.requirements import MergeProgress
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import merge
from storage_core.region.manifest import check_epoch, commit, read_latest
from storage_core.region.registry import close_spec, known_regions, read_registry
from storage_core.region.spec import check_spec, closing_region, only_region
from storage_core.region.writer import RegionWriter
from storage_core.settings.region_fields import (
    BY_HAND_SPEC,
    REGIONS_KEY,
    Region,
    RegionField,
    RegionSpec,
    specs_to_text,
)

_ATTEMPTS = 10

_logger = logging.getLogger(__name__)


def change_regions(log: TransactionLog, fields: tuple[RegionField, ...], *, quarantine: bool = False) -> Snapshot:
    """Make these the fields of the table's current region spec, and return the snapshot in which they are.

    Nothing happens when they are already. Else the old regions are merged here, closed, and the rest of them is merged;
    then the new spec is committed. Interrupted anywhere, doing it again finishes. A region that cannot be merged is not
    closed: it takes rows as before. With `quarantine`, what cannot be merged goes there: the way out of a region that
    is closed already (decision 0088). Raises what that merge raises, `InvalidInput` when the fields cannot divide
    the table, `CommitConflict` when others keep committing to the same rows, and what `close_regions` raises.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        snapshot = log.snapshot()
        config = snapshot.config
        if config.kind != "keyed":
            raise InvalidInput(
                f"{log.store.uri}: regions divide the primary key, and this table has none; leave them out, or make it "
                "anew with a primary key",
                table=snapshot.table_id,
            )
        if fields == config.region_spec.fields and not is_ending(log.store, snapshot):
            return snapshot
        spec = RegionSpec(id=config.region_spec.id + 1, fields=fields)
        check_spec(spec, snapshot.schema, config.primary_key)
        try:
            # A merge that fails should fail while the region still takes what cures it: nothing opens a closed one.
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
    """Make generations of what writers acknowledged: only those can be merged, or refuse to be."""
    for region in _of_spec(log.store, snapshot):
        latest = read_latest(log.store, region.id)
        if latest is None or latest.closed_by:
            continue
        with suppress(WriterFenced, RegionClosed):  # somebody is at work there; closing it comes to that
            writer = RegionWriter.open(log.store, snapshot, clock=log.clock, ids=log.ids, region=region)
            with writer:
                writer.flush()


def _of_spec(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """The regions of the spec that ends; those made by hand are of none, and stay as they are."""
    return [each for each in known_regions(store, snapshot) if each.spec_id != BY_HAND_SPEC]


def _merge_everything(log: TransactionLog, *, quarantine: bool) -> None:
    snapshot = log.snapshot()
    own = {each.id for each in _of_spec(log.store, snapshot)}
    while works := merge.plan(log.store, snapshot, regions=own):
        now_ms = log.clock.now_ms()
        execute = partial(merge.execute, log.store, ids=log.ids, now_ms=now_ms, quarantine=quarantine)
        results = [execute(work) for work in works]
        snapshot = merge.commit(log, snapshot, works, results).snapshot


def _commit_spec(log: TransactionLog, spec: RegionSpec, progress: Sequence[MergeProgress]) -> None:
    snapshot = log.snapshot()
    specs = snapshot.config.region_specs
    if specs[-1].id >= spec.id:
        raise CommitConflict(
            f"{log.store.uri}: somebody else made region spec {specs[-1].id} meanwhile; plan again",
            table=snapshot.table_id,
        )
    settings = {**snapshot.metadata.configuration, REGIONS_KEY: specs_to_text((*specs, spec))}
    changed = replace(snapshot.metadata, configuration=settings)
    log.commit(snapshot, [changed], operation="CONFIGURE", requirements=progress)


def is_ending(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Return whether the current spec takes no more rows, because a change of it was begun. One to three requests."""
    spec = snapshot.config.region_spec
    if spec.fields:
        return spec.id in read_registry(store).closed
    manifest = read_latest(store, only_region(snapshot.table_id, spec).id)
    return manifest is not None and manifest.closed_by > 0


def close_regions(
    store: ObjectStore, snapshot: Snapshot, *, successor: int, clock: Clock, ids: Ids
) -> tuple[MergeProgress, ...]:
    """Close every region of the snapshot's current spec and return what their merges must have reached.

    From then on no row enters them: the spec takes no new region, each region is claimed, which fences its writer, its
    log is flushed, and its manifest says so for ever. Every acknowledged row is in a generation. Doing it again
    changes nothing. About 15 requests per region. Raises `Unavailable` when others keep claiming a region.
    """
    spec = snapshot.config.region_spec
    close_region = partial(_close, store, snapshot, successor=successor, clock=clock, ids=ids)
    if not spec.fields:
        return (close_region(only_region(snapshot.table_id, spec)),)
    # Its manifest says that the spec is closed where the registry is lost, also of a spec without any other region; and
    # who came in through a lost registry before it did so is in the second answer (decision 0063).
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
            continue  # somebody claimed it in between, or closed it as we do
    raise Unavailable(
        f"region {region.id}: other writers kept claiming it in {_ATTEMPTS} attempts to close it; stop them, or try "
        "again later",
        region=region.id,
    )
