"""The memory of reads from remote storage: a scan, a filtered scan of unmerged rows, and a `group by`.

The table consists of copies of one split. Only the first copy is on disk. The store creates the bytes of all further
copies during reads. The store has no local paths, so the table is read like a table in a bucket. Each read has its own
process. The metric is the peak memory of the read's process and of its query process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from benchmarks.metrics import Metric, command
from storage_core.log.actions import Add
from storage_core.split.metadata import CHECKSUM, with_checksum
from storage_core.store.contract import IfAbsent
from storage_core.store.local import LocalStore
from storage_core.write.region.steps import merge_regions
from tidemark import Table

BOUND_MB: Final = 512
SCHEMA: Final = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("g", pa.int64()), ("v", pa.int64()), ("text", pa.string())]
)


def _scanned(table: Table) -> int:
    return sum(batch.num_rows for batch in table.scan().to_reader())


def _above_the_base(table: Table) -> int:
    return sum(batch.num_rows for batch in table.scan(filter="v >= 0", consistency="latest").to_reader())


def _grouped(table: Table) -> int:
    found = table.sql("select g, count(*) as n, sum(v) as v, min(text) as low from t group by g").to_pylist()
    return sum(row["n"] for row in found)


READS: Final[dict[str, Callable[[Table], int]]] = {"scan": _scanned, "latest": _above_the_base, "group by": _grouped}


def rows_of(count: int, *, is_dense: bool) -> pa.Table:
    """Return rows of about 100 bytes each. If `is_dense` is false, repeated values make the encoded rows small."""
    random = np.random.default_rng(1)
    keys = np.arange(count)
    values = random.integers(0, 2**62, count) if is_dense else keys // 1000
    texts = random.integers(0, 2**62, (count, 4)).view("S32")[:, 0] if is_dense else None
    column = [each.hex().ljust(64, "0") for each in texts.tolist()] if texts is not None else ["a text " * 10] * count
    return pa.table([keys, keys % 100, values, column], schema=SCHEMA)


def table_of(uri: str, rows: pa.Table, splits: int) -> Table:
    """Create a table with `splits` splits and one unmerged row. Every split has the same rows.

    A table on disk contains only the file of the first split (see `measured`).
    """
    table = Table.create(uri, SCHEMA, primary_key="k")
    with table.writer() as writer:
        writer.put(rows)
        writer.flush()
        _merge(table)
        writer.put([{"k": 2**60, "g": 0, "v": 1, "text": "newer"}])
    head = table.refresh().snapshot
    (add,) = head.splits.values()
    data = table.store.get(add.path).data
    others = [_copy(add, data, number) for number in range(1, splits)]
    if table.store.local_path(add.path) is None:
        for other, copied in others:
            table.store.put(other.path, copied, IfAbsent())
    table.log.commit(head, [other for other, _ in others], operation="COPY")
    return table.refresh()


def _merge(table: Table) -> None:
    merge_regions(table.log, table.refresh().snapshot)


def _copy(add: Add, data: bytes, number: int) -> tuple[Add, bytes]:
    """Return a copy of a split under another name. The footer contains the new name, too."""
    stem = Path(add.path).stem
    own = f"{stem[:-12]}{number:012x}"
    copied = _renamed(data, _names(pa.BufferReader(data), stem, own))
    footer = None if add.footerXxh3 is None else xxhash.xxh3_64_hexdigest(copied[add.footerStartOffset :])
    other = replace(add, path=add.path.replace(stem, own), xxh3=xxhash.xxh3_64_hexdigest(copied), footerXxh3=footer)
    return other, copied


def _names(file: pa.NativeFile | Path, stem: str, own: str) -> list[tuple[bytes, bytes]]:
    """Return the texts to replace in a copy of a split: the name, and the checksum over the metadata."""
    said = {key.decode(): value.decode() for key, value in pq.read_metadata(file).metadata.items()}
    theirs = with_checksum({key: value.replace(stem, own) for key, value in said.items()})
    return [(stem.encode(), own.encode()), (said[CHECKSUM].encode(), theirs[CHECKSUM].encode())]


def _renamed(data: bytes, names: list[tuple[bytes, bytes]]) -> bytes:
    for name, own in names:
        data = data.replace(name, own)
    return data


def peaks(uri: str, read: str) -> dict[str, int]:
    """Run a read in its own process.

    Return the number of rows, and the peak bytes of this process and its query process.
    """
    program = f"from benchmarks.read_memory import measured; measured({uri!r}, {read!r})"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def measured(uri: str, read: str) -> None:
    """Run a read, and print the values that `peaks` returns.

    If a split is not on disk, make it from the first split.
    """
    table = Table.open(uri)
    stored = [*Path(uri.removeprefix("file://")).rglob("*.parquet")] if uri.startswith("file://") else []
    if stored:
        LocalStore.local_path = _nowhere  # type: ignore[assignment,method-assign]
        LocalStore.get_range = partialmethod(_part_of, stored[0])  # type: ignore[assignment]
    before = _status("self", "VmRSS")
    rows = READS[read](table)
    children = Path("/proc/self/task").glob("*/children")
    helpers = [each for path in children for each in path.read_text(encoding="ascii").split()]
    worker = max((_status(each, "VmHWM") for each in helpers), default=0)
    found = {"rows": rows, "before": before, "peak": _status("self", "VmHWM"), "worker": worker}
    sys.stdout.write(json.dumps(found))


def _part_of(_store: LocalStore, stored: Path, key: str, start: int, end: int) -> bytes:
    with stored.open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    own = Path(key).stem
    return data if stored.stem.encode() not in data else _renamed(data, _names(stored, stored.stem, own))


def _nowhere(_store: LocalStore, _key: str) -> None:
    """Return None as the local path of every object."""


def _status(process: str, metric: str) -> int:
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    found = re.search(rf"^{metric}:\s+(\d+) kB", text, re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the peak memory in MB of each read, and of the query process of this read."""
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(60_000 if small else 1_000_000, is_dense=True)
        table = table_of(str(Path(folder) / "table"), rows, 2 if small else 250)
        what = f"over {table.snapshot.bytes / 1e9:.1f} GB of splits"
        for read in READS:
            found = peaks(table.uri, read)
            if found["rows"] < table.snapshot.rows:
                raise RuntimeError(f"{read}: {found} of {table.snapshot.rows} rows")
            for who, peak in (("process", found["peak"]), ("process of its query", found["worker"])):
                if peak:
                    value, against = peak / 1e6, f"{BOUND_MB} MB"
                    ratio = BOUND_MB / value
                    yield Metric(
                        name=f"{read} {what}, {who}", value=value, unit="MB", against=against, ratio=ratio, aim=1
                    )


if __name__ == "__main__":
    raise SystemExit(command(measure, "The memory of reads that no local disk serves."))
