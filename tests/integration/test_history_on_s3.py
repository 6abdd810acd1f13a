"""A client reads a history page by page over HTTP. For each page, the client opens the table again.

See docs/architecture/ingestion.md, "Paged reading".
"""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemIds
from storage_core.compact import execute as compaction
from storage_core.data.rows import fold
from storage_core.write.region.steps import merge_regions
from tests.support.keyed_table import PLANES
from tests.support.merge_plan import plan as plan_compaction
from tests.support.s3_server import S3Server
from tidemark import Table


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"tables/{uuid4()}")


def row(number: int, seats: int) -> dict[str, object]:
    return {"tailnum": f"N{number:03}", "seats": seats, "model": f"model {seats}"}


def merge_all(table: Table) -> None:
    merge_regions(table.log, table.refresh().snapshot)


def compact(table: Table) -> list[str]:
    """Compact everything and return the splits that are no longer in the table."""
    deleted: list[str] = []
    for operation in plan_compaction(table.refresh().snapshot):
        result = compaction.execute(table.store, operation, ids=SystemIds(), now_ms=table.log.clock.now_ms())
        table.log.commit(table.snapshot, result.actions, operation="COMPACT")
        deleted += [each.path for each in result.removes]
    return deleted


def test_a_history_on_s3_goes_on_in_any_process_and_begins_anew_when_its_splits_are_gone(uri: str) -> None:
    table = Table.create(uri, PLANES, primary_key="tailnum")
    with table.writer() as writer:
        for first in (0, 10):
            writer.put([row(each, each) for each in range(first, first + 15)])
            writer.flush()
            merge_all(table)
        writer.patch({"tailnum": "N003", "seats": 99})
        writer.flush()
        writer.delete("N004")
    whole = Table.open(uri).read_history()
    latest = Table.open(uri).scan(consistency="latest").to_arrow()
    assert (whole.token, whole.restarted) == (None, False)
    assert rows_of(whole.records).equals(latest.sort_by("tailnum"))

    pages = [Table.open(uri).read_history(page_bytes=300)]
    while pages[-1].token is not None:
        merge_all(table)
        compact(table)
        pages.append(Table.open(uri).read_history(token=pages[-1].token, page_bytes=300))
    assert len(pages) > 3
    assert pa.concat_tables([page.records for page in pages]).equals(whole.records)

    begun = table.read_history(page_bytes=100)
    assert not begun.restarted
    with table.writer() as writer:
        writer.put(row(50, 50))
        writer.flush()
    merge_all(table)
    deleted = compact(table)
    assert table.store.delete(deleted) == dict.fromkeys(deleted)
    assert begun.token is not None
    again = Table.open(uri).read_history(token=begun.token)
    assert (again.restarted, again.token) == (True, None)
    assert rows_of(again.records).num_rows == latest.num_rows + 1


def rows_of(records: pa.Table) -> pa.Table:
    return fold.apply(PLANES.empty_table(), fold.fold(records, ["tailnum"]), ["tailnum"])
