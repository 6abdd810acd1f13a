"""Features of a table that keep releases away which would misread or spoil it (`docs/spec.md`, 2.1).

A table has those that it needs and no more: one that never deletes and has one region opens in every release.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from storage_core.log.actions import (
    CHANGED_COLUMNS_FEATURE,
    HAND_REGIONS_FEATURE,
    KEY_INDEXES_FEATURE,
    OWN_FEATURE,
    PACKED_METADATA_FEATURE,
    PARTITIONS_FEATURE,
    PRUNED_FEATURE,
    REGIONS_FEATURE,
    SHARED_FEATURE,
    TRANSLATIONS_FEATURE,
    VECTOR_COLUMNS_FEATURE,
    VECTORS_FEATURE,
    WINDOW_CHANGES_FEATURE,
    Action,
    Add,
    Metadata,
    Protocol,
    RemoveTxn,
    Translation,
)
from storage_core.log.sharing import SOURCE
from storage_core.rows.columns import COLUMN_ID
from storage_core.rows.vectors import VECTOR
from storage_core.settings.index import INDEX_PREFIX, IndexDefinition
from storage_core.settings.partition_fields import PARTITION_BY_KEY
from storage_core.settings.region_fields import HAND_REGIONS_KEY, REGIONS_KEY
from storage_core.settings.table import FORMER_WINDOWS_KEY, SPLIT_METADATA_KEY

_EVERY_TABLE = ("avroState", "schemaDeduplication", OWN_FEATURE)

_OF_SETTINGS: Final = {
    REGIONS_KEY: REGIONS_FEATURE,  # without it writers claim, and readers look into, the region of the whole table
    FORMER_WINDOWS_KEY: WINDOW_CHANGES_FEATURE,  # without it what was ingested under other windows is ingested again
    SOURCE: SHARED_FEATURE,  # without it splits of the source are missed
    HAND_REGIONS_KEY: HAND_REGIONS_FEATURE,  # without it rows of regions that no spec names are missed
    PARTITION_BY_KEY: PARTITIONS_FEATURE,  # without it splits are of no partition, and those of several are merged
}
"""What a table needs that has one of these settings."""


def first_protocol(metadata: Metadata) -> Protocol:
    """Return the protocol of a new table with this metadata."""
    features = (*_EVERY_TABLE, *_needed((metadata,)))
    return Protocol(readerFeatures=features, writerFeatures=features)


def first_version(metadata: Metadata, others: Sequence[Action], known: Protocol | None) -> tuple[Action, ...]:
    """Return what a new table begins with: its protocol, with all that is `known` to be needed, then these actions."""
    actions = (metadata, *others)
    protocol = first_protocol(metadata) if known is None else known
    found = with_features(actions, protocol)
    return found if found != actions else (protocol, *actions)


def with_features(actions: tuple[Action, ...], protocol: Protocol) -> tuple[Action, ...]:
    """Return the actions behind the protocol that they need, or as they are where the table's is enough."""
    needed = _needed(actions)
    upgraded = replace(
        protocol,
        readerFeatures=_and(protocol.readerFeatures, needed),
        writerFeatures=_and(protocol.writerFeatures, needed),
    )
    return (upgraded, *actions) if needed and upgraded != protocol else actions


def _needed(actions: Iterable[Action]) -> list[str]:
    return list(dict.fromkeys(feature for action in actions for feature in _needed_by(action)))


def _needed_by(action: Action) -> Iterable[str]:
    match action:
        case Add() if action.deletionVector is not None:
            yield VECTORS_FEATURE  # without it rows that are gone are returned, and written back
        case Metadata():
            yield from (feature for key, feature in _OF_SETTINGS.items() if key in action.configuration)
            if action.configuration.get(SPLIT_METADATA_KEY, "plain") != "plain":
                yield PACKED_METADATA_FEATURE  # without it checksums of new splits are not found
            if VECTOR in action.schemaString:
                yield VECTOR_COLUMNS_FEATURE  # without it writers let in lists of any length
            if COLUMN_ID in action.schemaString:
                yield CHANGED_COLUMNS_FEATURE  # without it splits of earlier schemas are damaged, or of other values
            if any(_is_of_the_key(*entry) for entry in action.configuration.items()):
                yield KEY_INDEXES_FEATURE  # without it the settings of the table are none
        case RemoveTxn():
            yield PRUNED_FEATURE  # without it a landed file that comes back is ingested again
        case Translation():
            yield TRANSLATIONS_FEATURE  # without it segments are taken for those of other rows, or for none
        case _:
            pass


def _is_of_the_key(key: str, text: str) -> bool:
    return key.startswith(INDEX_PREFIX) and IndexDefinition.from_text(key, text).kind == "primary_key"


def _and(features: tuple[str, ...] | None, needed: Iterable[str]) -> tuple[str, ...]:
    known = features or ()
    return (*known, *(each for each in needed if each not in known))
