"""What runs inside a Spark task: one work item, one store, one answer. No Spark, no Dagster, no commit.

Every function takes the item as the driver planned it and returns plain data: the actions to commit and the metrics of
the report. A task writes files under fresh ids; only those whose actions the driver commits belong to the table
(docs/architecture/orchestration.md, "Spark").
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.reports.failure import Failed
from storage_core.audit import audit as auditing
from storage_core.clock import SystemClock
from storage_core.compaction import execute as compaction
from storage_core.compaction import merge_parts
from storage_core.compaction import rewindow as rewindowing
from storage_core.compaction.skips import LASTING
from storage_core.compaction.work import CompactionTask
from storage_core.distribution import execute as distribution
from storage_core.distribution.work import DivideWork, FillWork
from storage_core.errors import Corrupt, NotFound, TidemarkError, as_tidemark_error
from storage_core.ids import SystemIds
from storage_core.index import catch_up, segment_merge
from storage_core.index.segment_merge_work import SegmentMerge
from storage_core.ingest import batch
from storage_core.ingest.work import IngestWork
from storage_core.log.actions import to_json_object
from storage_core.log.sharing import open_table_store
from storage_core.objectstore.meter import MeteredStore, add_requests
from storage_core.region import merge as region_merge
from storage_core.region import sorting
from storage_core.region.merge_work import MergeWork
from storage_core.split.context import SplitContext

if TYPE_CHECKING:
    from jobs.spark.spark import Answer, Item

LOG = logging.getLogger(__name__)


def compact(item: Item) -> Answer:
    """Execute one compaction task. One that fails is an answer, whatever it was: it concerns its own window only.

    `lasting` says whether the same inputs would fail again.
    """
    store = MeteredStore(open_table_store(item["table_uri"]))
    task = CompactionTask.from_json(item["task"])
    try:
        result = compaction.execute(store, task, ids=SystemIds(), now_ms=SystemClock().now_ms())
    except Exception as error:  # also a defect: raised, it would end the tasks of all other windows
        if not isinstance(error, TidemarkError):
            LOG.exception("compaction of window %s", task.window)
        failed = Failed.of(as_tidemark_error(error), lasting=isinstance(error, LASTING))
    else:
        return {"result": result.to_json(), "requests": store.requests}
    return {"failed": failed.to_object(), "requests": store.requests}


def sample_keys(item: Item) -> Answer:
    """Sample the keys of some inputs of a merge that is too large for one task. Writes nothing."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    found = merge_parts.sample(store, CompactionTask.from_json(item["task"]), item["inputs"])
    columns = as_text(found.columns.empty_table())
    return {"keys": as_text(found.keys), "columns": columns, "requests": store.requests}


def locate_keys(item: Item) -> Answer:
    """Say where some inputs of such a merge have keys. Writes nothing."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    places = merge_parts.locate(store, CompactionTask.from_json(item["task"]), of_text(item["keys"]))
    return {"places": places, "requests": store.requests}


def as_text(rows: pa.Table) -> str:
    """Return rows as items and answers carry them: an Arrow stream in base64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode()


def of_text(text: str) -> pa.Table:
    """Return the rows of which `as_text` made this text."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def rewindow(item: Item) -> Answer:
    """Write splits in windows of another duration, or in another order. What fails is an answer, as of `compact`."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    task = rewindowing.RewindowTask.from_json(item["task"])
    try:
        result = rewindowing.execute(store, task, ids=SystemIds(), now_ms=SystemClock().now_ms())
    except TidemarkError as error:
        failed = Failed.of(error, lasting=isinstance(error, LASTING))
        return {"failed": failed.to_object(), "requests": store.requests}
    return {"result": result.to_json(), "requests": store.requests}


def audit(item: Item) -> Answer:
    """Judge some splits or merges by their files. Writes nothing."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    return {**auditing.execute(store, item["work"]), "requests": store.requests}


def compact_several(item: Item) -> Answer:
    """Execute several small merges one after the other; the answers are in their order, each as `compact` gives it."""
    answers = [compact({"table_uri": item["table_uri"], "task": each}) for each in item["tasks"]]
    return {"answers": answers, "requests": add_requests(*(answer["requests"] for answer in answers))}


def build_segment(item: Item) -> Answer:
    """Build and store one index segment."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    segment = catch_up.execute(store, catch_up.CatchUpWork.from_json(item["work"]), ids=SystemIds())
    return {"segment": to_json_object(segment), "requests": store.requests}


def merge_segments(item: Item) -> Answer:
    """Store one index segment in place of several. One of them that is damaged or gone is an answer: others go on."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    try:
        segment = segment_merge.execute(store, SegmentMerge.from_json(item["work"]), ids=SystemIds())
    except (Corrupt, NotFound) as error:
        return {"failed": Failed.of(error).to_object(), "requests": store.requests}
    return {"segment": to_json_object(segment), "requests": store.requests}


def ingest(item: Item) -> Answer:
    """Ingest one landed file."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    context = SplitContext.from_json(item["context"])
    work = IngestWork.from_json(item["work"])
    result = batch.execute(store, work, context=context, ids=SystemIds(), now_ms=SystemClock().now_ms())
    return {"result": result.to_json(), "requests": store.requests}


def merge(item: Item) -> Answer:
    """Merge the waiting generations of one region; `quarantine` says whether what cannot be applied is quarantined."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    work = MergeWork.from_json(item["work"])
    now_ms = SystemClock().now_ms()
    result = region_merge.execute(store, work, ids=SystemIds(), now_ms=now_ms, quarantine=item["quarantine"])
    return {"result": result.to_json(), "requests": store.requests}


def sort(item: Item) -> Answer:
    """Write a run of unsorted generations of one region as a sorted one."""
    store = MeteredStore(open_table_store(item["table_uri"]))
    work = sorting.SortingWork.from_json(item["work"])
    result = sorting.execute(store, work, clock=SystemClock(), ids=SystemIds())
    return {"result": result.to_json(), "requests": store.requests}


def distribute_divide(item: Item) -> Answer:
    """Divide the records of some chunks of a raw log among its tables."""
    work = DivideWork.from_json(item["work"])
    stores = _Stores()
    raw = [stores.open(uri) for uri in work.source.stores]
    result = distribution.divide(work, raw, stores.open, clock=SystemClock(), ids=SystemIds())
    return {"result": result.to_json(), "requests": stores.requests}


def distribute_fill(item: Item) -> Answer:
    """Write the records of a raw log that belong to one region as its next generation."""
    work = FillWork.from_json(item["work"])
    store = MeteredStore(open_table_store(work.uri))
    result = distribution.fill(work, store, clock=SystemClock(), ids=SystemIds())
    return {"result": result.to_json(), "requests": store.requests}


class _Stores:
    """The stores of one task by URI, each opened once; they count their requests together."""

    def __init__(self) -> None:
        self._opened: dict[str, MeteredStore] = {}

    def open(self, uri: str) -> MeteredStore:
        """Return the store at the URI."""
        return self._opened.setdefault(uri, MeteredStore(open_table_store(uri)))

    @property
    def requests(self) -> dict[str, int]:
        """The requests of all of them by kind."""
        return add_requests(*(each.requests for each in self._opened.values()))
