"""The Dagster job `forget`, by which a person has rows of a table forgotten: table and condition are its config.

It keeps no asset: what it does is done once, for a condition that somebody gives. Dagster stores that condition with
the run (docs/operations.md, "A person asks to be forgotten").
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from collections.abc import Sequence

from dagster import Failure, Field, JobDefinition, OpExecutionContext, job, op

from assets.launcher import LAUNCHER
from assets.metadata import mapping, metadata_of
from assets.run_tags import TABLE
from jobs.requests.distribute import DistributeRequest
from jobs.requests.forget import ForgetRequest
from storage_core.declaration import TableDeclaration
from storage_core.errors import InvalidInput

Fed = tuple[TableDeclaration, Sequence[DistributeRequest]]
"""A table, and the raw logs that it gets rows from."""


def build_forget_job(tables: Sequence[Fed], *, prefix: str = "") -> JobDefinition:
    """Return the job, which takes rows from a table and from its raw logs. It needs the resource `launcher`.

    With `report` it changes nothing, and fails as long as something still holds the rows.
    """

    @op(
        name=f"{prefix}forget_rows",
        config_schema={"table": str, "where": str, "report": Field(bool, default_value=False)},
        required_resource_keys={LAUNCHER},
        description="Erases the rows of `table` that meet `where`; with `report` only says what still holds them.",
    )
    def forget_rows(context: OpExecutionContext) -> None:
        table, raw_logs = _named(tables, context.op_config["table"])
        context.instance.add_run_tags(context.run_id, {TABLE: table.name})  # by which an alert names the table
        request = ForgetRequest(
            table_uri=table.uri,
            where=context.op_config["where"],
            table=table.name,
            raw_logs=tuple(each.raw_log for each in raw_logs),
            root=next((each.root for each in raw_logs), None),
            report=context.op_config["report"],
            run_id=context.run_id,
        )
        report = getattr(context.resources, LAUNCHER).submit(context, "forget", request)
        metadata = metadata_of(report)
        if request.report and not mapping(report["details"])["is_clean"]:
            raise Failure("objects still hold the rows", metadata=metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @job(
        name=f"{prefix}forget",
        description="Erases rows of one person, or of any condition, from a table and its stores.",
    )
    def forget() -> None:
        forget_rows()

    return forget


def _named(tables: Sequence[Fed], name: str) -> Fed:
    for table, raw_logs in tables:
        if table.name == name:
            return table, raw_logs
    known = ", ".join(table.name for table, _ in tables)
    raise Failure(f"{InvalidInput.kind}: {name!r} is no declared table (declared: {known})", allow_retries=False)
