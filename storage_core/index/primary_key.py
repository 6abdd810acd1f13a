"""Segments of the primary key: the ascending hashes of a split's keys, and the row of each key (docs/spec.md, 13.3).

The hashes are the same as in Bloom filters (`data.formats.key_hashes`). Therefore a reader must compare the selected
rows with the key. `keys.bin` has blocks of equal length. The blocks divide the range of hashes into equal parts, and
each block has the hashes of one part. Therefore the log's data about the segment determines the block of a key and the
position of the block. A lookup of a key takes one request. Each block has its own checksum. `head.bin` contains the
number of rows. This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats.key_hashes import HashedRows, Hashes, Numbers, Places, key_hashes
from storage_core.data.rows.codes import Mask
from storage_core.index.damage import damaged

KEYS, HEAD = "keys.bin", "head.bin"
FORMAT: Final = 1

BLOCK_KEYS: Final = 1024
"""The approximate number of keys per block.

A block takes 12 KiB. Reading 12 KiB adds little to the time of a request.
"""

MOST_ROOM: Final = 2
"""The maximum ratio of the bytes of equally long blocks to the bytes of the keys in these blocks.

If blocks of equal length would need more than `MOST_ROOM` times the bytes of the keys, the file has a single block with
all keys.
"""

_HEAD = struct.Struct("<II")
HEAD_BYTES: Final = _HEAD.size
_CHECKSUM, _BEFORE_KEYS, _KEY = 8, 16, 12


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the keys of `rows` rows in a file with `blocks` blocks. Each block has space for `room` keys."""

    rows: int
    blocks: int
    room: int

    @staticmethod
    def of(rows: int, size: int, *, where: str) -> Layout:
        """Return the layout of a file of `size` bytes. Raises `Corrupt`."""
        blocks = 1 if size == _BEFORE_KEYS + _KEY * rows else _blocks(rows)
        room, rest = divmod(size // blocks - _BEFORE_KEYS, _KEY)
        if size % blocks or rest or room < 0 or not rows <= blocks * room <= max(rows, MOST_ROOM * rows):
            raise _damaged(where, f"the size of {size} bytes does not fit the keys of {rows} rows")
        return Layout(rows, blocks, room)

    @property
    def block_bytes(self) -> int:
        """The length of each block in bytes."""
        return _BEFORE_KEYS + _KEY * self.room

    def blocks_of(self, hashes: Hashes) -> Places:
        """Return the block of each hash."""
        return _block_of(hashes, self.blocks)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The layout of a block: the xxh3-64 of all later bytes, the number of keys, the format, hashes and rows."""
        fields = [("xxh3", "<u8"), ("keys", "<u4"), ("format", "<u4")]
        return np.dtype([*fields, ("hashes", "<u8", (self.room,)), ("rows", "<u4", (self.room,))])


def build(rows: pa.Table, key: Sequence[str]) -> dict[str, bytes]:
    """Return the files of a segment over these rows.

    Takes about 50 bytes of memory per row. The function `bound` later adds checksums that include the identity of the
    object.
    """
    return _files(HashedRows.of(_hashes(rows, key), stable=True))


def bound(files: Mapping[str, bytes | memoryview], identity: str) -> dict[str, bytes | memoryview]:
    """Return the files with checksums that include the identity of the object.

    A block of another object then has a wrong checksum.
    """
    seed, data = _seed(identity), bytearray(files[KEYS])
    size = Layout.of(_head(files[HEAD], where=identity), len(data), where=identity).block_bytes
    for start in range(0, len(data), size):
        digest = xxhash.xxh3_64_intdigest(memoryview(data)[start + _CHECKSUM : start + size], seed)
        data[start : start + _CHECKSUM] = digest.to_bytes(_CHECKSUM, "little")
    return {**files, KEYS: bytes(data)}


def block(data: bytes | memoryview, layout: Layout, identity: str, *, where: str) -> HashedRows:
    """Return the keys of one block in the object with this identity. Raises `Corrupt` and `Unsupported`."""
    if not is_valid_block(data, layout, identity):
        raise _damaged(where, f"the checksum of a block of {KEYS} does not match")
    found = np.frombuffer(data, layout.dtype)[0]
    _require_known(int(found["format"]), where)
    count = int(found["keys"])
    keys = HashedRows(found["hashes"][:count].astype(np.uint64), found["rows"][:count].astype(np.uint32))
    if count > layout.room or (keys.hashes[1:] < keys.hashes[:-1]).any() or (keys.rows >= layout.rows).any():
        raise _damaged(where, f"a block of {KEYS} does not fit {layout.rows} rows")
    return keys


def is_valid_block(data: bytes | memoryview, layout: Layout, identity: str) -> bool:
    """Return whether `data` is an intact block of the object with the identity `identity`."""
    stored = int.from_bytes(data[:_CHECKSUM], "little")
    return len(data) == layout.block_bytes and stored == xxhash.xxh3_64_intdigest(data[_CHECKSUM:], _seed(identity))


def every_key(files: Mapping[str, bytes | memoryview], identity: str, *, where: str) -> HashedRows:
    """Return all keys of a segment, and check that each row has one key. Raises `Corrupt` and `Unsupported`."""
    if {KEYS, HEAD} - files.keys():
        raise _damaged(where, f"expected {KEYS} and {HEAD}, found {sorted(files)}")
    data = memoryview(files[KEYS])
    layout = Layout.of(_head(files[HEAD], where=where), len(data), where=where)
    starts = range(0, len(data), layout.block_bytes)
    parts = [block(data[each : each + layout.block_bytes], layout, identity, where=where) for each in starts]
    found = HashedRows.joined(parts)
    blocks = np.repeat(np.arange(layout.blocks), [len(each.hashes) for each in parts])
    placed = len(found.rows) == layout.rows and (layout.blocks_of(found.hashes) == blocks).all()
    if not placed or not _is_permutation(found.rows):
        raise _damaged(where, f"{KEYS} must contain each of {layout.rows} rows once, in the block of its key")
    return found


def check(files: Mapping[str, bytes | memoryview], *, rows: int | None, identity: str, where: str) -> None:
    """Raise `Corrupt` or `Unsupported` unless these are valid files of a segment with this number of rows."""
    found = len(every_key(files, identity, where=where).rows)
    if rows is not None and found != rows:
        raise _damaged(where, f"the files have the keys of {found} rows, but the log has {rows} rows")


def _files(keys: HashedRows) -> dict[str, bytes]:
    rows = len(keys.rows)
    numbers = _block_of(keys.hashes, _blocks(rows))
    counts = np.bincount(numbers, minlength=_blocks(rows))
    if len(counts) * int(counts.max()) > MOST_ROOM * rows:
        numbers, counts = np.zeros(rows, np.int64), np.array([rows])
    layout = Layout(rows, len(counts), int(counts.max()))
    table = np.zeros(layout.blocks, layout.dtype)
    table["keys"], table["format"] = counts, FORMAT
    within = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
    table["hashes"][numbers, within] = keys.hashes
    table["rows"][numbers, within] = keys.rows
    return {KEYS: table.tobytes(), HEAD: _HEAD.pack(FORMAT, rows)}


def _hashes(rows: pa.Table, key: Sequence[str]) -> Hashes:
    """Return one hash per row.

    A key with a null has the hash 0. Only programs other than Tidemark store a key with a null, and no lookup searches
    for a key with a null.
    """
    is_key: Mask = np.ones(rows.num_rows, np.bool_)
    for name in key:
        is_key &= pc.is_valid(rows.column(name)).to_numpy()
    hashes = np.zeros(rows.num_rows, np.uint64)
    hashes[is_key] = key_hashes(rows if is_key.all() else rows.filter(pa.array(is_key)), key)
    return hashes


def _head(data: bytes | memoryview, *, where: str) -> int:
    """Return the number of rows of the segment."""
    if len(data) != HEAD_BYTES:
        raise _damaged(where, f"{HEAD} has {len(data)} bytes, expected {HEAD_BYTES}")
    found, rows = _HEAD.unpack(data)
    _require_known(found, where)
    return int(rows)


def _require_known(found: int, where: str) -> None:
    if found != FORMAT:
        what = f"{where}: the keys have format {found}, but this release reads format {FORMAT}. Upgrade Tidemark"
        raise Unsupported(what, key=where)


def _blocks(rows: int) -> int:
    return max(1, -(-rows // BLOCK_KEYS))


def _block_of(hashes: Hashes, blocks: int) -> Places:
    """Return the block of each hash.

    The upper 32 bits of a hash determine the block. The blocks divide the range of 32-bit numbers equally.
    """
    return ((hashes >> np.uint64(32)) * np.uint64(blocks) >> np.uint64(32)).astype(np.int64)


def _is_permutation(rows: Numbers) -> bool:
    return bool((np.bincount(rows, minlength=len(rows)) == 1).all())


def _seed(identity: str) -> int:
    return xxhash.xxh3_64_intdigest(identity.encode())


def _damaged(where: str, what: str) -> Corrupt:
    return damaged(where, f"not the files of a primary-key segment: {what}")
