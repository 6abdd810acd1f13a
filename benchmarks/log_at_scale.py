"""The log of a table with many files: opening, pruning, committing and checkpointing, compared to delta-rs and JSON.

Every system has a log of the same files with the same statistics. Each log is opened from its own newest checkpoint.
Each system has its own process, in which the libraries are already imported. The measurement "open" ends when the
system can plan a query. The measurement "look at all" ends when the entries of all files, with their statistics, are in
memory as columns.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from benchmarks.metrics import Metric, command, median, peak_mib, seconds
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Metadata
from storage_core.log.checkpoint_writing import manifest_info, write_checkpoint
from storage_core.log.live_splits import ListedFiles, LiveFiles, Part
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import FILES_SCHEMA, adds_of
from storage_core.read.predicate import col
from storage_core.read.pruning import manifest_filter, prune_table
from storage_core.store.local import LocalStore

MOST_FILES = 1_000_000
PARTITIONS = 1_000
NEW_FILES = 1_000
COMMITTED = 100
CHUNK = 50_000
HOUR_S = 3_600
SCHEMA = pa.schema(
    [("day", pa.string()), ("service", pa.string()), ("latency", pa.int64()), ("time", pa.timestamp("us", "UTC"))]
)
DELTA_TYPES = ("string", "string", "long", "timestamp")


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of each table."""
    for files in (5_000,) if small else (100_000, MOST_FILES):
        with tempfile.TemporaryDirectory() as folder:
            yield from _measure(Path(folder), files, repeats=1 if small else 3)


def _measure(root: Path, files: int, repeats: int) -> Iterator[Metric]:
    full = 0.0
    for prefix, count in (("tiny-", PARTITIONS), ("", files)):
        full = _write_ours(root / f"{prefix}avro", count, TableConfig(checkpoint_interval=0))
        legacy = TableConfig(checkpoint_interval=0, checkpoint_format="json-multipart")
        _write_ours(root / f"{prefix}json", count, legacy)
        _write_delta(root / f"{prefix}delta", count)
    avro, memory = _apart(_open_ours, root / "avro", repeats)
    as_json, _ = _apart(_open_ours, root / "json", 1)
    delta, delta_memory = _apart(_open_delta, root / "delta", repeats)
    ready, _ = _apart(_open_only, root / "avro", repeats)
    delta_ready, _ = _apart(_open_delta_only, root / "delta", repeats)
    name = f"open {files:,} files"
    yield Metric(name=name, value=ready, unit="s", against="delta-rs", ratio=delta_ready / ready, aim=2)
    name = f"{name} and look at all"
    yield Metric(name=name, value=avro, unit="s", against="JSON checkpoint", ratio=as_json / avro, aim=10)
    yield Metric(name=f"{name}, statistics too", value=avro, unit="s", against="delta-rs", ratio=delta / avro, aim=2)
    yield Metric(name=f"{name}, peak memory", value=memory, unit="MiB", against="delta-rs", ratio=delta_memory / memory)
    if files == MOST_FILES:
        yield Metric(name=name, value=avro, unit="s", against="2 s", ratio=2 / avro, aim=1)
        limit = 1.5 * 1024
        name = f"{name}, peak memory"
        yield Metric(name=name, value=memory, unit="MiB", against="1.5 GiB", ratio=limit / memory, aim=1)
    pruned, _ = _apart(_open_partition, root / "avro", repeats)
    yield Metric(
        name=f"open and find 1 of {PARTITIONS:,} partitions in {files:,}", value=pruned * 1000, unit="ms",
        against="50 ms", ratio=0.05 / pruned, aim=1,
    )  # fmt: skip
    own, _ = _apart(_commit_ours, root / "avro", 1)
    peer, _ = _apart(_commit_delta, root / "delta", 1)
    yield Metric(
        name=f"open and commit {COMMITTED} files to {files:,}", value=own, unit="s", against="delta-rs",
        ratio=peer / own, aim=1,
    )  # fmt: skip
    own, _ = _apart(_checkpoint_ours, root / "avro", 1)
    peer, _ = _apart(_checkpoint_delta, root / "delta", 1)
    name = f"checkpoint of {files:,} files after {NEW_FILES:,} new ones"
    yield Metric(name=name, value=own, unit="s", against="writing all of it", ratio=full / own)
    yield Metric(name=f"{name}, the peer", value=peer, unit="s", against="delta-rs", ratio=peer / own)


def _files(start: int, count: int, at: int) -> pa.Table:
    """Return rows of `FILES_SCHEMA`. There is one file per hour and partition, with statistics of three columns."""
    numbers = np.arange(start, start + count)
    days = numbers % PARTITIONS
    text = pc.cast(pa.array(numbers), pa.string())
    day = pc.binary_join_element_wise("day=", pc.utf8_lpad(pc.cast(pa.array(days), pa.string()), 4, "0"), "")
    windows = pa.array(days * 24 * HOUR_S + (numbers // PARTITIONS % 24) * HOUR_S)
    window = pc.cast(windows, pa.string())
    path = pc.binary_join_element_wise("splits/", window, "/", text, "-0f3c1e2f3a4d529a520f6c2f.parquet", "")
    none = pa.array(np.zeros(count, int))
    columns = {
        "path": path,
        "partitionValues": _maps({"day": day}, count),
        "size": pa.array(100_000_000 + numbers),
        "modificationTime": pa.array(1_700_000_000_000 + numbers),
        "dataChange": pa.array(np.ones(count, bool)),
        "minValues": _maps({"service": _constant("api", count), "latency": text}, count),
        "maxValues": _maps({"service": _constant("web", count), "latency": text}, count),
        "numRecords": pa.array(numbers % 1_000_000 + 1),
        "hasFooterOffsets": pa.array(np.zeros(count, bool)),
        "addedAtVersion": pa.array(np.full(count, at)),
        "addedAtTimestamp": pa.array(np.full(count, 1_700_000_000_000)),
        "windowStart": windows,
        "windowSeconds": pa.array(np.full(count, HOUR_S)),
        "sortSchema": _constant("service|timestamp/V2", count),
        "nullCounts": _maps({"service": none, "latency": none}, count),
        "xxh3": pc.utf8_lpad(text, 16, "0"),
    }
    arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in FILES_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=FILES_SCHEMA)


def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _maps(values: dict[str, pa.Array], count: int) -> pa.MapArray:
    order = np.arange(count * len(values)).reshape(len(values), count).T.ravel()
    keys = pa.concat_arrays([_constant(key, count) for key in values]).take(pa.array(order))
    items = pa.concat_arrays(list(values.values())).take(pa.array(order))
    return pa.MapArray.from_arrays(
        pa.array(np.arange(0, count * len(values) + 1, len(values)), pa.int32()), keys, items
    )


def _write_ours(root: Path, files: int, config: TableConfig) -> float:
    """Create a table whose checkpoint contains `files` files.

    Return the seconds that writing the checkpoint took.
    """
    log = _log(root)
    metadata = Metadata(
        id=log.ids.uuid(), schemaString=to_schema_string(SCHEMA), partitionColumns=("day",),
        configuration=config.to_configuration(),
    )  # fmt: skip
    created = log.create(metadata)
    head = log.commit(created, _new_adds(0, 1), operation="APPEND").snapshot
    listed = _listed(head, [_files(at, min(CHUNK, files - at), 1) for at in range(0, files, CHUNK)])
    # This code does not write the checkpoint with the log. The log would compare the checkpoint with stored objects.
    # The comparison would fail, because the files were never committed individually.
    full = replace(head, splits=LiveFiles(listed))
    return seconds(lambda: write_checkpoint(log.store, full, log.ids.uuid, compact=True))


def _listed(head: Snapshot, tables: list[pa.Table]) -> ListedFiles:
    parts = tuple(Part.of(manifest_info("", table, head), table) for table in tables)
    files = sum(table.num_rows for table in tables)
    return ListedFiles(0, parts, frozenset(), files, 0)


def _log(root: Path) -> TransactionLog:
    return TransactionLog(LocalStore(root))


def _new_adds(start: int, count: int) -> tuple[Add, ...]:
    return adds_of(_files(start, count, 0))


def _write_delta(root: Path, files: int) -> None:
    fields = [
        {"name": each.name, "type": kind, "nullable": True, "metadata": {}}
        for each, kind in zip(SCHEMA, DELTA_TYPES, strict=True)
    ]
    actions: list[dict[str, object]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "5b0f3c1e-2f3a-4d52-9a52-0f6c2f7d9a11", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": ["day"],
                      "configuration": {}, "createdTime": 1_700_000_000_000}},
    ]  # fmt: skip
    log = root / "_delta_log"
    log.mkdir(parents=True)
    with (log / f"{0:020d}.json").open("w") as target:
        target.writelines(json.dumps(action) + "\n" for action in actions)
        for at in range(0, files, CHUNK):
            target.writelines(_delta_line(add) + "\n" for add in _new_adds(at, min(CHUNK, files - at)))
    deltalake.DeltaTable(root).create_checkpoint()


def _delta_line(add: Add) -> str:
    body = {name: getattr(add, name) for name in ("path", "partitionValues", "size", "modificationTime", "dataChange")}
    return json.dumps({"add": body | {"stats": _delta_stats(add)}})


def _delta_stats(add: Add) -> str:
    least, greatest = (
        {"service": values["service"], "latency": int(values["latency"])}
        for values in (add.minValues, add.maxValues)
        if values is not None
    )
    counts = {"numRecords": add.numRecords, "nullCount": add.nullCounts}
    return json.dumps(counts | {"minValues": least, "maxValues": greatest})


def _delta_actions(adds: Iterable[Add]) -> list[AddAction | RemoveAction]:
    return [
        AddAction(
            add.path,
            add.size,
            dict(add.partitionValues),
            add.modificationTime,
            data_change=True,
            stats=_delta_stats(add),
        )
        for add in adds
    ]


Timed = Callable[[Path], float]


def _apart(work: Timed, root: Path, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a step and the peak MiB of its process. Each repetition has a new process."""
    found = []
    for _ in range(repeats):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(partial(_measured, work, root)).result())
    return median([each[0] for each in found]), median([each[1] for each in found])


def _measured(work: Timed, root: Path) -> tuple[float, float]:
    work(root.parent / f"tiny-{root.name}")  # imports and starts everything that the step needs
    taken = work(root)
    return taken, peak_mib()


def _open_only(root: Path) -> float:
    return seconds(lambda: len(_log(root).snapshot().splits))


def _open_delta_only(root: Path) -> float:
    return seconds(partial(deltalake.DeltaTable, root))


def _open_ours(root: Path) -> float:
    return seconds(lambda: _log(root).snapshot().splits.table().num_rows)


def _open_delta(root: Path) -> float:
    return seconds(lambda: pa.table(deltalake.DeltaTable(root).get_add_actions()))


def _open_partition(root: Path) -> float:
    wanted = col("day") == "day=0500"

    def find() -> None:
        head = _log(root).snapshot()
        keep = manifest_filter(wanted.predicate, schema=SCHEMA, time_column=None, partition_columns=("day",))
        found = prune_table(head.splits.table(keep), wanted.predicate, schema=SCHEMA, time_column=None)
        if pc.sum(found.keep).as_py() != len(head.splits) // PARTITIONS:
            raise AssertionError(f"{pc.sum(found.keep)} files found")

    return seconds(find)


def _commit_ours(root: Path) -> float:
    adds = _new_adds(10**8, COMMITTED)
    return seconds(lambda: _log(root).commit(_log(root).snapshot(), adds, operation="APPEND"))


def _commit_delta(root: Path) -> float:
    adds = _delta_actions(_new_adds(10**8, COMMITTED))
    return seconds(lambda: deltalake.DeltaTable(root).create_write_transaction(adds, "append", SCHEMA, ["day"]))


def _checkpoint_ours(root: Path) -> float:
    log = _log(root)
    head = log.commit(log.snapshot(), _new_adds(2 * 10**8, NEW_FILES), operation="APPEND").snapshot
    return seconds(lambda: log.checkpoint(head))


def _checkpoint_delta(root: Path) -> float:
    table = deltalake.DeltaTable(root)
    adds = _delta_actions(_new_adds(2 * 10**8, NEW_FILES))
    table.create_write_transaction(adds, "append", SCHEMA, ["day"])
    table.update_incremental()
    return seconds(table.create_checkpoint)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
