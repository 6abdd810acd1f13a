"""Parts: what one task found for one region, typed, until the generation is written (decision 0060).

A part is a data file in a generation's directory that no manifest names, as a distributor that ended before its
manifest leaves one, too: nobody reads it but the task that was told of it, and the collector takes it when it is old.
So records are decoded and typed once, and neither the driver nor a shuffle carries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import CommitConflict, NotFound
from storage_core.formats import data_file, keys
from storage_core.formats.generation_manifest import RECORDS_FILE
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where the rows are, as `rows.fold.record_schema` in the order of the history, and the checksum of the file."""

    region: str
    directory: str
    checksum: str
    rows: int

    @property
    def key(self) -> str:
        """The key of the file."""
        return keys.generation_file_key(self.region, self.directory, RECORDS_FILE)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Part:
        """Return the part that `to_json` gave."""
        return cls(**found)


def write_part(store: ObjectStore, records: pa.Table, *, region: str, clock: Clock, ids: Ids) -> Part:
    """Write the records; durable when this returns, and known to nobody. One PUT. Raises `CommitUnknown`."""
    data = data_file.encode(records)
    checksum = data_file.checksum(data)
    # The number says nothing: which generation the rows will be of is not known before the region is claimed.
    part = Part(region=region, directory=f"{ids.uuid()[:8]}_gen_1", checksum=checksum, rows=records.num_rows)
    if not create_numbered(store, part.key, data, clock=clock):
        raise CommitConflict(
            f"{part.key}: holds something else; distribute again, which takes a new name", key=part.key
        )
    return part


def read_part(store: ObjectStore, part: Part) -> pa.Table:
    """Return the records of a part. One GET.

    Raises `Corrupt` when it is not what was written, `CommitConflict` when somebody collected it meanwhile.
    """
    try:
        return data_file.decode(store.get(part.key).data, part.checksum, part.key)
    except NotFound as error:
        raise CommitConflict(
            f"{part.key}: a collector took it before its time; distribute again", key=part.key
        ) from error
