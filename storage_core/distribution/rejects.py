"""Records of the raw log that no table takes, in quarantine (docs/architecture/README.md, rule 7).

One object per chunk and place, by the same layout as lines of landed files: `source` is `<raw log>/<writer>/<chunk>`,
`size` how many records are in it, `line` the sequence number of the record, `text` the record as JSON. Its key follows
from the content: distributing again writes it once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.distribution.work import Source
from storage_core.errors import Unavailable
from storage_core.ingest.quarantine import write_quarantine
from storage_core.ingest.rejection import RejectedLine
from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.read import RejectedRecord


def source_of(raw_log: str, ref: RawChunkRef) -> str:
    """Return the name of a chunk as the source of what is quarantined."""
    return f"{raw_log}/{ref.writer}/{ref.number}"


def keep(store: ObjectStore, raw_log: str, ref: RawChunkRef, rejected: Sequence[RejectedRecord]) -> None:
    """Keep the rejected records of one chunk; durable when this returns. One PUT, none for none."""
    if rejected:
        source = source_of(raw_log, ref)
        lines = sorted((_line(source, each) for each in rejected), key=lambda each: each.line or 0)
        write_quarantine(store, source, len(lines), lines)


def keep_in_any(
    stores: Sequence[ObjectStore], raw_log: str, ref: RawChunkRef, rejected: Sequence[RejectedRecord]
) -> None:
    """Keep them in the first store that answers. Raises `Unavailable` when none does."""
    reasons: list[str] = []
    for store in stores:
        try:
            keep(store, raw_log, ref, rejected)
        except Unavailable as error:
            reasons.append(str(error))
        else:
            return
    raise Unavailable(f"no store of raw log {raw_log} takes what is to be quarantined: {'; '.join(reasons)}")


def keep_unknown(stores: Sequence[ObjectStore], source: Source, ref: RawChunkRef, records: pa.Table) -> Counter[str]:
    """Keep the records of a chunk that are of no table of the raw log, and count them by the table that they name.

    Raises what `keep_in_any` raises.
    """
    known = pc.is_in(records.column("table"), pa.array(source.tables, pa.string()))
    strangers = records.filter(pc.invert(known)).to_pylist()
    rejected = [RejectedRecord.of(each, f"{each['table']!r} is no table of this raw log") for each in strangers]
    keep_in_any(stores, source.name, ref, rejected)
    return Counter(each["table"] for each in strangers)


def _line(source: str, record: RejectedRecord) -> RejectedLine:
    body = {"table": record.table, "operation": record.operation, "key": record.key, "fields": record.fields}
    text = json.dumps(body, ensure_ascii=False)
    return RejectedLine(source, int(record.record_id.rpartition(":")[2]), record.reason, text)
