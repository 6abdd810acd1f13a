"""Where a generation holds which key: so that a lookup reads the entries it needs, not all.

`key_index.arrow` is an Arrow IPC stream with one row per record, ascending by `hash`, records of one hash in the order
of their acknowledgement: `hash` (uint64, `formats.key_hash`), `entry` (uint64, the number of the WAL entry) and `row`
(uint32, the record in it, from 0). Like the bloom filter it only saves work: readers that find a hash compare the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import Corrupt
from storage_core.formats.arrow_stream import read_stream
from storage_core.formats.key_hash import Hashes, within

Rows = npt.NDArray[np.int64]

_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("entry", pa.uint64(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
    ]
)


def build(hashes: Hashes, entries: Sequence[int], lengths: Sequence[int]) -> bytes:
    """Return the index of records whose keys hash so: `lengths` says how many of them each entry holds, in order."""
    order = np.argsort(hashes, kind="stable")
    entry = np.repeat(np.array(entries, np.uint64), lengths)
    starts = np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    row = (np.arange(len(hashes)) - starts).astype(np.uint32)
    columns = [pa.array(each[order]) for each in (hashes, entry, row)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Where the records of a generation are, ascending by hash."""

    hashes: Hashes
    entry: npt.NDArray[np.uint64]
    row: npt.NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.hashes.nbytes + self.entry.nbytes + self.row.nbytes

    def find(self, wanted: Hashes) -> Mapping[int, Rows]:
        """Return the rows, ascending, of each entry that has records whose keys hash like wanted ones."""
        found = within(np.unique(wanted), self.hashes)
        entry, row = self.entry[found], self.row[found]
        return {int(each): np.sort(row[entry == each]).astype(np.int64) for each in np.unique(entry)}


def decode(data: bytes, where: str) -> KeyIndex:
    """Return the index in `data`; `where` is its key. Raises `Corrupt` when the bytes are no such index."""
    index, _ = read_stream(data, "the key index", where)
    if not index.schema.equals(_SCHEMA):
        raise Corrupt(f"{where}: expected a key index with {_SCHEMA.names}, found {index.schema.names}", key=where)
    hashes, entry, row = (index.column(name).to_numpy() for name in _SCHEMA.names)
    if (hashes[1:] < hashes[:-1]).any():
        raise Corrupt(f"{where}: the hashes of a key index ascend, these do not", key=where)
    return KeyIndex(hashes, entry, row)
