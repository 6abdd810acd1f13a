"""The I/O manager: an asset is a table, a partition of it the rows of its windows, an input rows of the type it names.

What is stored is committed before Dagster hears of it. So a store that was killed may have been done, and is done
again: an overwrite and an upsert leave the same rows, and an append knows its run (decision 0157).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableIOManager, InputContext, OutputContext
from pydantic import Field

from storage_core.errors import InvalidInput, NotFound
from storage_core.foreign_text import quoted
from storage_core.formats.short_hash import short_hash
from storage_core.importing.union import as_held
from storage_core.objectstore.resolve import name_of
from storage_core.read.view import Consistency
from storage_core.settings.query import QueryLimits
from storage_core.table import Table, exists
from tidemark.io_manager.failures import typed_failures
from tidemark.io_manager.forms import Form, data_of, required_form, rows_in
from tidemark.io_manager.metadata import table_metadata
from tidemark.io_manager.settings import CREATE, DAGSTER_URI, AssetSettings, InputSettings, WriteMode, place_of
from tidemark.io_manager.slices import Shape, condition_of

if TYPE_CHECKING:
    from storage_core.read.predicate import Filter
    from tidemark.io_manager.forms import Data

EVERY_ROW = "true"


class TidemarkIOManager(ConfigurableIOManager):
    """Stores assets in tables and loads them from there.

    An asset's table is at `tidemark/uri` of its metadata, where that says nothing under `root` by its key. An input is
    loaded as the type of its annotation, without one as `default_type`; the rows of partitions
    are looked for no longer than `load_seconds`.
    """

    root: str = Field(default="warehouse", description="The folder or URI under which assets without a place are kept.")
    default_type: str = Field(
        default=Form.ARROW.value, description=f"What an input without an annotation is: {', '.join(Form)}."
    )
    load_seconds: float = Field(default=3600.0, description="The longest that rows of partitions may take.")

    def load_input(self, context: InputContext) -> object:
        """Return the rows of an asset, or of its partitions that the input is about, in the type that it names.

        Of the newest version, and of a keyed table with every acknowledged row, unless `tidemark/at` and
        `tidemark/consistency` of the input say otherwise. Raises `Failure` with the kind and message of the typed
        error; nothing is read then.
        """
        with typed_failures():
            form = self._form(context.dagster_type.typing_type)
            given = InputSettings.of(context.definition_metadata)
            above = context.upstream_output.definition_metadata if context.upstream_output else {}
            kept = AssetSettings.of(above)
            table = Table.open(given.uri or self._place(context, kept, above), at=given.at)
            condition = _partitions_of_input(context, table, kept)
            usual = Consistency.LATEST if table.config.primary_key and given.at is None else Consistency.SNAPSHOT
            scan = table.scan(
                given.columns,
                condition,
                consistency=given.consistency or usual,
                limits=None if condition is None else QueryLimits(seconds=self.load_seconds),
            )
            context.log.info("loading %s at version %d as %s", table.uri, table.version, form)
            return rows_in(scan, form)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store what an asset returned: by `tidemark/mode`, else by key in a keyed table and in place of its partition.

        A table that does not exist is made with the columns of the rows and what `tidemark/create` says. Raises
        `Failure` with the kind and message of the typed error; nothing is committed then.
        """
        with typed_failures():
            kept = AssetSettings.of(context.definition_metadata)
            uri = self._place(context, kept, context.definition_metadata)
            data = data_of(obj)
            there = Table.open(uri) if exists(uri) else None
            shape = _to_be(uri, data, kept.create) if there is None else Shape.of(there)
            condition = _partitions_of_output(context, shape, kept)
            table = there or _made(shape, kept.create or {})
            mode = kept.mode or (WriteMode.UPSERT if table.config.primary_key else WriteMode.OVERWRITE)
            written = _store(context, table, data, mode=mode, condition=condition, on=kept.on)
            found: dict[str, Any] = {
                **table_metadata(table, _table_name(context, table, kept)),
                "tidemark/version": table.version,
                "tidemark/mode": mode.value,
                "tidemark/rows_written": written,
            }
            if mode is WriteMode.OVERWRITE and context.has_asset_partitions and len(context.asset_partition_keys) == 1:
                found["dagster/partition_row_count"] = written
        context.log.info("stored %d rows in %s: %s, version %d", written, table.uri, mode, table.version)
        context.add_output_metadata(found)

    def _form(self, annotation: object) -> Form:
        if annotation is not Any:
            return required_form(annotation)
        if self.default_type not in list(Form):
            raise InvalidInput(f"default_type is one of {', '.join(Form)}; found {quoted(self.default_type)}")
        return Form(self.default_type)

    def _place(self, context: InputContext | OutputContext, kept: AssetSettings, metadata: Mapping[str, object]) -> str:
        declared = metadata.get(DAGSTER_URI)
        if kept.uri or declared:
            return kept.uri or str(getattr(declared, "value", declared))
        if not context.has_asset_key:
            raise InvalidInput("only an asset has a place by its key; give the output the metadata 'tidemark/uri'")
        return place_of(self.root, context.asset_key.path)


def _partitions_of_input(context: InputContext, table: Table, kept: AssetSettings) -> Filter | None:
    if not context.has_asset_partitions:
        return None
    shape = Shape.of(table)
    return condition_of(shape, context.asset_partitions_def, context.asset_partition_keys, kept.partition_expr)


def _partitions_of_output(context: OutputContext, table: Shape, kept: AssetSettings) -> Filter | None:
    """The rows in whose place an overwrite puts others. Raises `InvalidInput` for a run without the partition."""
    if context.has_asset_partitions:
        return condition_of(table, context.asset_partitions_def, context.asset_partition_keys, kept.partition_expr)
    if context.has_asset_key and context.asset_spec.partitions_def is not None:
        raise InvalidInput(f"{context.asset_key.to_user_string()} has partitions, and the run has none; run it for one")
    return None


def _store(
    context: OutputContext, table: Table, data: Data, *, mode: WriteMode, condition: Filter | None, on: tuple[str, ...]
) -> int:
    """Commit the rows, and return how many were written: none where an append was done before."""
    match mode:
        case WriteMode.APPEND if table.config.primary_key:
            return table.append(data).rows
        case WriteMode.APPEND:
            done = table.append(data, application=(_work_of(context), 0))
            if not done.commit_id:
                context.log.info("nothing is appended: no row was left, or this run has appended its rows before")
            return done.rows
        case WriteMode.OVERWRITE:
            return table.overwrite(data, EVERY_ROW if condition is None else condition).rows_added
        case WriteMode.UPSERT:
            return table.upsert(data, on=on or table.config.primary_key).rows_added


def _work_of(context: OutputContext) -> str:
    """What tells one store, and every retry of it, apart from all others: by the run that the retries began with."""
    run = context.step_context.dagster_run
    keys = context.asset_partition_key_range if context.has_asset_partitions else None
    what = [context.step_key, context.name, context.mapping_key, *([] if keys is None else [keys.start, keys.end])]
    first = run.root_run_id or run.get_root_run_id() or run.run_id  # a retry says it in its record, or by a tag
    return f"dagster:{first}:{short_hash(json.dumps(what))}"


def _to_be(uri: str, data: Data, create: Mapping[str, Any] | None) -> Shape:
    """What a table that does not exist is going to be. Raises `NotFound` where nobody says how it is made."""
    if create is None:
        raise NotFound(
            f"{uri}: there is no table; give the asset the metadata {CREATE!r} with parameters of Table.create, such "
            "as {'time_column': 'at', 'window': '1h'} or {}, and it is made from its first rows; or declare it in "
            "tables/*.yaml and run tidemark init",
            uri=uri,
        )
    known = sorted({*Table.create.__annotations__} - {"uri", "schema", "return"})
    unknown = [name for name in create if name not in known]
    if unknown:
        raise InvalidInput(f"{CREATE}: {quoted(unknown[0])} is no parameter of Table.create; there are {known}")
    return Shape(uri, as_held(data.schema, "the rows"), create.get("time_column"))


def _made(shape: Shape, create: Mapping[str, Any]) -> Table:
    try:
        return Table.create(shape.uri, shape.schema, **create)
    except InvalidInput:
        if not exists(shape.uri):  # else another partition made it in between
            raise
        return Table.open(shape.uri)


def _table_name(context: OutputContext, table: Table, kept: AssetSettings) -> str:
    """The key of an asset whose place is by its key, as names of tables are written; else the name of the folder."""
    if kept.uri is None and context.has_asset_key:
        return ".".join(context.asset_key.path)
    return name_of(table.uri)
