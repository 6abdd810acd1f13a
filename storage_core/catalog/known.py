"""What a catalogue knows of a table besides its splits, as the row of `tables` has it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.catalog.rows import Columns
from storage_core.catalog.schema import TABLES
from storage_core.cloning.clone import record_of
from storage_core.errors import InvalidInput, NotFound
from storage_core.formats.short_hash import short_hash
from storage_core.log.actions import Metadata, Protocol, is_ours, to_json_object
from storage_core.log.snapshot import Snapshot
from storage_core.rows.schema import from_schema_string
from storage_core.rows.sort_order import bind, nameless
from storage_core.settings.table import TableConfig

_SETTINGS = ("protocol", "schema_string", "configuration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One table at the version that the catalogue shows.

    `head_commit_id` and `head_timestamp_ms` tell the version from another of its number, `table_id` the table from
    another at its place. What changed is known since `first_version`. `protocol`, `schema_string` and `configuration`
    are those of the log.
    """

    table_id: str
    name: str
    uri: str
    head_version: int
    head_commit_id: str
    head_timestamp_ms: int
    first_version: int
    protocol: str
    schema_string: str
    configuration: str

    @staticmethod
    def of(snapshot: Snapshot, *, name: str, uri: str, commit_id: str) -> Known:
        """Return what a snapshot says."""
        return Known(
            table_id=catalog_id(snapshot),
            name=name,
            uri=uri,
            head_version=snapshot.version,
            head_commit_id=commit_id,
            head_timestamp_ms=snapshot.timestamp,
            first_version=snapshot.version,
            protocol=canonical_json(to_json_object(snapshot.protocol)[Protocol.NAME]),
            schema_string=snapshot.metadata.schemaString,
            configuration=canonical_json(dict(snapshot.metadata.configuration)),
        )

    @property
    def metadata(self) -> Metadata:
        """Id, schema and configuration as the log has them."""
        return Metadata(id=self.table_id, schemaString=self.schema_string, configuration=json.loads(self.configuration))

    @property
    def config(self) -> TableConfig:
        """The settings of the table."""
        return TableConfig.from_configuration(json.loads(self.configuration))

    @property
    def columns(self) -> Columns:
        """The columns that the table has or had."""
        return Columns.of(self.metadata, self.config)

    @property
    def sort_schema(self) -> str:
        """What new splits record as their order, without its name."""
        return nameless(bind(self.config, from_schema_string(self.schema_string)).text)

    @property
    def is_ours(self) -> bool:
        """Whether every version has a file, so that the files after the head are all that there is to apply."""
        features = json.loads(self.protocol).get("writerFeatures")
        return is_ours(Protocol(writerFeatures=None if features is None else tuple(features)))

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot is of this table. Earlier releases know a clone by the id of its source."""
        return self.table_id in (catalog_id(snapshot), snapshot.table_id)

    def same_settings(self, other: Known) -> bool:
        """Tell whether both have the protocol, schema and configuration of the other."""
        return all(getattr(self, name) == getattr(other, name) for name in _SETTINGS)

    def row(self) -> dict[str, Any]:
        """Return the columns of `tables` that each version sets."""
        return {name: value for name, value in asdict(self).items() if name not in _SETTINGS}

    def settings(self) -> dict[str, Any]:
        """Return the columns of `tables` that follow from protocol, schema and configuration."""
        config = self.config
        return {
            **{name: getattr(self, name) for name in _SETTINGS},
            "columns": self.columns.described,
            "kind": config.kind,
            "time_column": config.time_column,
            "sort_schema": self.sort_schema,
            "window_seconds": config.window_seconds,
            "retention_ms": config.retention_ms,
        }


def catalog_id(snapshot: Snapshot) -> str:
    """Return the id by which a catalog identifies a table.

    For a clone this is the id in the log and a hash of the transaction that made the clone, because a clone has the
    table id of its source in its log.
    """
    made = record_of(snapshot)
    if made is None:
        return snapshot.table_id
    return f"{snapshot.table_id}.{short_hash(f'{made.appId} {made.lastUpdated}')[:16]}"


def another_table(known: Known, found_id: str, place: str) -> InvalidInput:
    """Return the error of a URI at which a catalogue, at `place`, knows a table and another one is."""
    return InvalidInput(
        f"{known.uri}: the catalogue {place} knows the table {known.table_id} here, found {found_id}; where that is "
        f"meant, run: tidemark catalog rebuild {known.uri} --url …",
        uri=known.uri,
    )


def canonical_json(value: object) -> str:
    """Return JSON that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def every_known(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Known]:
    """Return what is known of the tables of which the conditions are true, by name and URI."""
    names = [each.name for each in fields(Known)]
    found = connection.execute(
        sa.select(*(TABLES.c[name] for name in names)).where(*conditions).order_by(TABLES.c.name, TABLES.c.uri)
    )
    return [Known(**dict(zip(names, row, strict=True))) for row in found]


def known_by(connection: Connection, text: str, place: str) -> Known:
    """Return the table of this id, URI or name. Raises `NotFound`, `InvalidInput` where several are called so."""
    called = sa.or_(TABLES.c.table_id == text, TABLES.c.uri == text, TABLES.c.name == text)
    found = every_known(connection, called)
    if len(found) == 1:
        return found[0]
    if not found:
        names = ", ".join(each.name for each in every_known(connection)) or "none"
        raise NotFound(
            f"{text!r} is no table of the catalogue {place}, which has: {names}; bring it in with: "
            "tidemark catalog refresh --url …",
            table=text,
        )
    places = ", ".join(each.uri for each in found)
    raise InvalidInput(f"{text!r} are several tables of the catalogue {place}: {places}; give the URI", table=text)
