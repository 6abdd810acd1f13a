"""The Dagster job by which a person has rows of a table forgotten: `<table>_forget`, with the condition as its config.

It keeps no asset: what it does is done once, for a condition that somebody gives. Dagster stores that condition with
the run (docs/operations.md, "A person asks to be forgotten").
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from collections.abc import Sequence

from dagster import Failure, Field, JobDefinition, OpExecutionContext, job, op

from assets.launcher import LAUNCHER
from assets.metadata import mapping, metadata_of
from assets.names import identifier
from jobs.requests.distribute import DistributeRequest
from jobs.requests.forget import ForgetRequest
from storage_core.declaration import TableDeclaration


def build_forget_job(declaration: TableDeclaration, raw_logs: Sequence[DistributeRequest]) -> JobDefinition:
    """Return the job of a table, which takes rows from these raw logs. It needs the resource `launcher`.

    With `report` it changes nothing, and fails as long as something still holds the rows.
    """
    name = f"{identifier(declaration.name)}_forget"
    root = next((each.root for each in raw_logs), None)

    @op(
        name=f"{name}_rows",
        config_schema={"where": str, "report": Field(bool, default_value=False)},
        required_resource_keys={LAUNCHER},
        description="Erases the rows that meet `where`; with `report` only says what still holds them.",
    )
    def forget_rows(context: OpExecutionContext) -> None:
        request = ForgetRequest(
            table_uri=declaration.uri,
            where=context.op_config["where"],
            table=declaration.name,
            raw_logs=tuple(each.raw_log for each in raw_logs),
            root=root,
            report=context.op_config["report"],
            run_id=context.run_id,
        )
        report = getattr(context.resources, LAUNCHER).submit(context, "forget", request)
        metadata = metadata_of(report)
        if request.report and not mapping(report["details"])["is_clean"]:
            raise Failure("objects still hold the rows", metadata=metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @job(name=name, description="Erases rows of one person, or of any condition, from the table and its stores.")
    def forget() -> None:
        forget_rows()

    return forget
