"""How a table comes to be, and how its settings change: by a declaration, or once and for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_core.alteration import change_column, declared_changes
from storage_core.definition import (
    check_definition,
    check_names,
    check_new,
    check_unchanged,
    keeping_hand_regions,
    keeping_order,
    keeping_windows,
)
from storage_core.errors import InvalidInput
from storage_core.formats.keys import probe_key, version_key
from storage_core.ingest.landing import LANDING, reject_overlap
from storage_core.log.actions import Action, Metadata, RemoveIndexSegment, RemoveTranslation
from storage_core.log.apart import require_apart
from storage_core.log.log import TransactionLog
from storage_core.log.replanned import replanned
from storage_core.log.snapshot import Snapshot
from storage_core.named_settings import changed
from storage_core.objectstore import probe
from storage_core.objectstore.create import require_durable
from storage_core.rows import sort_schema
from storage_core.rows.columns import without_metadata
from storage_core.rows.schema import to_schema_string
from storage_core.settings.region_fields import REGIONS_KEY
from storage_core.settings.table import TableConfig

if TYPE_CHECKING:
    from storage_core.declaration import TableDeclaration


def create(
    log: TransactionLog, schema: pa.Schema, config: TableConfig, extra: Mapping[str, str] = MappingProxyType({})
) -> Snapshot:
    """Create an empty table and return its version 0; `extra` are settings beside those of the configuration.

    The caller has checked the columns with `check_new`, before the sort schema became canonical.
    Raises `InvalidInput` when there is a table already, around this place or in it, or the parts contradict each other,
    `Unsupported` when the store cannot hold a table. Requests: those of `require_capable`, `require_apart` and
    `TransactionLog.create`.
    """
    check_definition(schema, config)
    schema = without_metadata(schema)
    metadata = Metadata(
        id=log.ids.uuid(),
        schemaString=to_schema_string(schema),
        partitionColumns=config.partition_columns,
        configuration={**config.to_configuration(), **extra},
        createdTime=log.clock.now_ms(),
    )
    require_apart(log.store)
    require_capable(log)
    return log.create(metadata)


def require_capable(log: TransactionLog) -> None:
    """Return when the store keeps its contract; on S3 that probes it once a process (`objectstore.probe`)."""
    probe.require_capable(log.store, lambda: probe_key(log.ids.uuid()))


def declare(
    log: TransactionLog, declaration: TableDeclaration, marks: Mapping[str, str] = MappingProxyType({})
) -> Snapshot:
    """Return the newest version of the declared table, created where there is none; see `Table.declare`.

    A table that is created has the settings `marks`, too.
    """
    landing = declaration.landing_spec()
    extra = {} if landing is None else {LANDING: landing.to_json()}
    is_delta = landing is not None and landing.is_delta
    if landing is not None:
        reject_overlap(landing.uri, log.store.uri, "the table")
    if not log.exists():
        try:
            schema, config = declaration.schema(), declaration.config()
            check_new(schema, config)
            return create(log, schema, config, {**extra, **marks})
        except InvalidInput:
            if not log.exists():  # else another process declared it in between
                raise
    found = log.snapshot()
    changes = declared_changes(declaration.name, declaration.schema(), found.schema, follows=is_delta)
    check_unchanged(declaration.name, declaration.config(), found.config)
    for change in changes:
        found = change_column(log, found, change)

    def declared(current: Snapshot) -> Mapping[str, str]:
        wanted = keeping_windows(keeping_order(declaration.config(), current.config), current.config)
        wanted = keeping_hand_regions(wanted, current.config)
        check_names(current, wanted)
        return {**wanted.to_configuration(), **extra}

    return _following(log, found, declared)


def change_settings(log: TransactionLog, snapshot: Snapshot, given: Mapping[str, object]) -> Snapshot:
    """Commit the settings that are given, by the names of `named_settings`, and return what then is newest.

    The others stay as they are, also those that somebody changes meanwhile. Raises `InvalidInput` for what cannot be
    set, and what `configure` raises.
    """

    def wanted_of(current: Snapshot) -> Mapping[str, str]:
        wanted = changed(current.config, given)
        check_definition(current.schema, wanted)  # before the canonical text drops the types that were spelled out
        check_names(current, wanted)
        if wanted.sort_schema is not None:
            text = sort_schema.parse(wanted.sort_schema, wanted.time_column).text
            wanted = keeping_order(replace(wanted, sort_schema=text), current.config)
        wanted = keeping_hand_regions(keeping_windows(wanted, current.config), current.config)
        landing = {name: text for name, text in current.metadata.configuration.items() if name == LANDING}
        return {**wanted.to_configuration(), **landing}

    return _following(log, snapshot, wanted_of)


def configure(log: TransactionLog, snapshot: Snapshot, settings: Mapping[str, str]) -> Snapshot:
    """Commit these settings unless they are the table's already, and return what then is newest.

    Settings of other releases stay, and regions. Raises `CommitConflict` when others keep changing the table's
    settings.
    """
    return _following(log, snapshot, lambda _: settings)


def _following(
    log: TransactionLog, snapshot: Snapshot, settings_for: Callable[[Snapshot], Mapping[str, str]]
) -> Snapshot:
    def attempt(head: Snapshot) -> Snapshot:
        settings = dict(settings_for(head))
        settings.pop(REGIONS_KEY, None)  # the table's own, with its history
        actions = _changing(head, settings)
        if not actions:
            # The commit that made it so may be one whose outcome was unknown.
            require_durable(log.store, version_key(head.version), advice="declare the table again")
            return head
        require_capable(log)
        return log.commit(head, actions, operation="CONFIGURE").snapshot

    return replanned(log, snapshot, attempt)


def _changing(snapshot: Snapshot, settings: Mapping[str, str]) -> list[Action]:
    """What makes these the table's settings, without the segments of indexes that go; nothing if they are.

    Without any index the translations go, too.
    """
    current = dict(snapshot.metadata.configuration)
    ours = {name for name in current if name == LANDING or TableConfig.owns(name)} - {REGIONS_KEY}
    others = {name: value for name, value in current.items() if name not in ours}
    wanted = {**others, **settings}
    if wanted == current:
        return []
    kept = {index.name for index in TableConfig.from_configuration(wanted).indexes}
    dropped = [
        RemoveIndexSegment(index=segment.index, path=segment.path)
        for segment in snapshot.segments.values()
        if segment.index not in kept
    ]
    idle = [] if kept else [RemoveTranslation(path=path) for path in sorted(snapshot.translations)]
    return [replace(snapshot.metadata, configuration=wanted), *dropped, *idle]
