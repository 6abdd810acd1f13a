"""Sizes of files with real rows in arrival order, sizes of sorted splits with these rows, and bytes per query.

The data sets are a year of flights, a year of weather, and the access log of a web server. Each data set is measured in
windows and as a whole. The terms are:

- "Arrival": files with the rows in the order in which the rows arrived. The rows of the weather data arrive in the
  order of their hours.
- Files of the peers: files with the codec, pages and row groups of a split, but without our metadata. These files have
  Arrow's default encodings, or encodings that are chosen from a sample, as in splits.
- "Bare": files like the files of the peers, but without page indexes and without checksums.
- "Splits": the splits after a compaction, one per window or one for all rows.
- "Sorted and chosen": files of the peers whose rows have the sort order of splits. Their encodings are chosen from a
  sample.
- "Packed": splits with the setting `splits.metadata: packed`.
- "Joined": the splits after `compaction.coarsen_to` has joined windows. Windows of a day become weeks, or windows of an
  hour become days.
- "Pages": the bytes of the file without footers, indexes and metadata. In windows of a hundred rows, footers, indexes
  and metadata are most of a file.

Reads are measured on two tables with the same rows. One table has 32 sorted splits, made from the rows in arrival
order. The other table has one split, which is the merge of these 32 splits. Windows would exclude files from queries
for a time range, so the tables have no windows.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.metrics import Metric, command
from benchmarks.page_reads import bytes_read
from benchmarks.points import MOST_BYTES
from examples.datasets import access_log_lines, flights, weather
from storage_core.base.clock import SystemIds
from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.data.rows.sort_order import bind, sort_indices
from storage_core.data.rows.windows import split_by_window
from storage_core.data.settings.table import ZSTD_LEVEL, TableConfig
from storage_core.log.actions import Add
from storage_core.split.context import SplitContext
from storage_core.split.encode import CHOSEN_DICTIONARY_BYTES, ROWS_PER_PAGE, Encoding, choose
from storage_core.split.metadata import ROWS_PER_GROUP
from storage_core.split.writer import sort_and_write
from storage_core.store.local import LocalStore

AIM = 1 / 0.75
"""The aim is 25 % fewer bytes than files in arrival order with default encodings have."""
NO_LARGER = 1.0
"""The minimum ratio for windows with few rows: their splits are not larger than files in arrival order."""
MOST_OVERHEAD = 1_024
"""The maximum number of bytes that a split of one row has in addition to the bytes of a bare file with this row."""
ARRIVING = 32
_LINE = r'^(?P<client>\S+) \S+ \S+ \[(?P<at>[^ ]+) [^\]]+\] "(?P<request>[^"]*)" (?P<status>\d+) (?P<bytes>\d+|-) '
_REST = r'"(?P<referrer>[^"]*)" "(?P<agent>[^"]*)"'
_REQUEST = r"^(?P<method>[A-Z]+) (?P<path>\S+)"


@dataclass(frozen=True, slots=True)
class Data:
    """Rows in arrival order, with typical settings of a user and typical queries."""

    name: str
    rows: pa.Table
    time_column: str
    sort_schema: str
    window_seconds: int
    joined_seconds: int
    queries: Mapping[str, str]

    def context(self, *, windows: bool, joined: bool = False, packed: bool = False) -> SplitContext:
        """Return the context for splits with these rows."""
        config = TableConfig(time_column=self.time_column, sort_schema=self.sort_schema)
        order = bind(config, self.rows.schema)
        return SplitContext(
            table_id=self.name,
            schema=self.rows.schema,
            order=order,
            time_column=self.time_column,
            window_seconds=self.joined_seconds if joined else self.window_seconds if windows else None,
            target_bytes=MOST_BYTES,
            packed_metadata=packed,
        )


@dataclass(frozen=True, slots=True)
class Size:
    """The bytes of files, and the bytes of the pages in these files."""

    files: int
    pages: int

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.pages + other.pages)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the sizes of each data set by window and as a whole. Then yield the bytes that queries read."""
    for data in datasets(2_000 if small else None):
        for windows in (True, False):
            yield from _sizes(data, windows=windows)
        yield from small_windows(data)
        yield from _one_row(data)
        yield from _reads(data)


def datasets(rows: int | None = None) -> list[Data]:
    """Return the data sets. With a number, each data set has only this number of rows at the start."""
    readings = weather()
    return [
        Data(
            "flights",
            flights().slice(0, rows),
            "time_hour",
            "carrier|origin|dest|timestamp/V2",
            86_400,
            7 * 86_400,
            {
                "a carrier": "SELECT dep_delay FROM rows WHERE carrier = 'F9'",
                "a carrier to an airport": "SELECT dep_delay FROM rows WHERE carrier = 'UA' AND dest = 'SFO'",
                "an airport": "SELECT dep_delay FROM rows WHERE dest = 'SFO'",
                "a day": "SELECT dep_delay FROM rows WHERE time_hour >= '2013-01-02T00:00:00Z' "
                "AND time_hour < '2013-01-03T00:00:00Z'",
            },
        ),
        Data(
            "weather",
            readings.take(pc.sort_indices(readings, [("time_hour", "ascending"), ("origin", "ascending")])).slice(
                0, rows
            ),
            "time_hour",
            "origin|timestamp/V2",
            86_400,
            7 * 86_400,
            {
                "a station": "SELECT temp FROM rows WHERE origin = 'LGA'",
                "a week of a station": "SELECT temp FROM rows WHERE origin = 'LGA' "
                "AND time_hour >= '2013-01-05T00:00:00Z' AND time_hour < '2013-01-12T00:00:00Z'",
                "a day": "SELECT temp FROM rows WHERE time_hour >= '2013-01-02T00:00:00Z' "
                "AND time_hour < '2013-01-03T00:00:00Z'",
            },
        ),
        Data(
            "access log",
            _access_log().slice(0, rows),
            "at",
            "status|method|path|timestamp/V2",
            3_600,
            86_400,
            {
                "a status": "SELECT path FROM rows WHERE status = 404",
                "a path": "SELECT client FROM rows WHERE path = '/favicon.ico'",
                "a status and path": "SELECT client FROM rows WHERE status = 200 AND path = '/favicon.ico'",
                "an hour": "SELECT path FROM rows WHERE at >= '2015-05-17T12:00:00Z' AND at < '2015-05-17T13:00:00Z'",
            },
        ),
    ]


def _access_log() -> pa.Table:
    parts = pc.extract_regex(pa.array(access_log_lines()), pattern=_LINE + _REST)
    request = pc.extract_regex(pc.struct_field(parts, "request"), pattern=_REQUEST)
    text = {name: pc.struct_field(parts, name) for name in ("client", "request", "referrer", "agent")}
    at = pc.strptime(pc.struct_field(parts, "at"), format="%d/%b/%Y:%H:%M:%S", unit="us")
    sent = pc.struct_field(parts, "bytes")
    columns = text | {
        "at": at.cast(pa.timestamp("us", "UTC")),
        "method": pc.struct_field(request, "method"),
        "path": pc.struct_field(request, "path"),
        "status": pc.struct_field(parts, "status").cast(pa.int32()),
        "bytes": pc.if_else(pc.equal(sent, "-"), None, sent).cast(pa.int64()),
    }
    return pa.table(columns)


def _sizes(data: Data, *, windows: bool) -> Iterator[Metric]:
    name = f"{data.name} {'by window' if windows else 'whole'}"
    parts = [part for _, part in split_by_window(data.rows, data.time_column, data.window_seconds)]
    arrived = parts if windows else [data.rows]
    order = data.context(windows=windows).order
    in_order = [part.take(pa.array(sort_indices(part, order))) for part in arrived]
    default, chosen = (_written(arrived, chosen=each) for each in (False, True))
    splits = _compacted(data, data.context(windows=windows))
    for what, own in ((f"{name}, splits", splits), (f"{name}, sorted and chosen", _written(in_order, chosen=True))):
        yield from _against(what, own, "arrival order, default encodings", (default, AIM))
        yield from _against(what, own, "arrival order, chosen encodings", (chosen, None))


def small_windows(data: Data) -> Iterator[Metric]:
    """Yield the sizes of splits of windows with few rows: with packed metadata, with joined windows, and with both."""
    parts = [part for _, part in split_by_window(data.rows, data.time_column, data.window_seconds)]
    arrived, bare = _written(parts, chosen=False), _total([_bare(part) for part in parts])
    for what, packed, joined in (("packed", True, False), ("joined", False, True), ("joined and packed", True, True)):
        own = _compacted(data, data.context(windows=True, packed=packed, joined=joined))
        name = f"{data.name} by window, {what}"
        yield from _against(name, own, "arrival order, default encodings", (arrived, NO_LARGER))
        yield from _against(name, own, "arrival order, default encodings, bare", (bare, NO_LARGER))


def _one_row(data: Data) -> Iterator[Metric]:
    """Return the additional bytes of a split with only the first row, compared to a Parquet file with this row."""
    row = data.rows.slice(0, 1)
    bare = _bare(row).files
    for what, is_packed in (("plain", False), ("packed", True)):
        with tempfile.TemporaryDirectory() as folder:
            context = data.context(windows=True, packed=is_packed)
            (add,) = sort_and_write(LocalStore(folder), row, context=context, ids=SystemIds(), now_ms=1)
        name, aim = f"{data.name}, a split of one row, {what}", NO_LARGER if is_packed else None
        yield Metric(name=name, value=add.size, unit="B", against="the row in a bare file", ratio=bare / add.size)
        most = bare + MOST_OVERHEAD
        yield Metric(
            name=f"{name}, to a bare file and {MOST_OVERHEAD:,} B",
            value=add.size,
            unit="B",
            against=f"a bare file and {MOST_OVERHEAD:,} B",
            ratio=most / add.size,
            aim=aim,
        )


def _bare(rows: pa.Table) -> Size:
    """Return the size of a file of Arrow with these rows.

    The file has the codec of splits and otherwise default settings.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", compression_level=ZSTD_LEVEL, store_schema=False)
    return _size(pa.BufferReader(sink.getvalue()))


def _compacted(data: Data, context: SplitContext) -> Size:
    """Return the size of the splits after a compaction.

    The rows are written in 32 parts, like arriving rows. The compaction then writes one split per window, or one split
    for all rows.
    """
    with tempfile.TemporaryDirectory() as folder:
        store, arrived = LocalStore(folder), dict[int | None, list[Add]]()
        step = -(-data.rows.num_rows // ARRIVING)
        for start in range(0, data.rows.num_rows, step):
            part = data.rows.slice(start, step)
            for add in sort_and_write(store, part, context=context, ids=SystemIds(), now_ms=1):
                arrived.setdefault(add.windowStart, []).append(add)
        merges = [CompactionTask(window, tuple(adds), context) for window, adds in arrived.items()]
        made = [add for merge in merges for add in execute(store, merge, ids=SystemIds(), now_ms=1).adds]
        return _total([_size(Path(folder) / add.path) for add in made])


def _against(name: str, own: Size, peer: str, against: tuple[Size, float | None]) -> Iterator[Metric]:
    size, aim = against
    ratio = size.files / own.files
    yield Metric(name=f"{name}, to {peer}", value=own.files, unit="B", against=peer, ratio=ratio, aim=aim)
    ratio = size.pages / own.pages
    yield Metric(name=f"{name}, pages, to {peer}", value=own.pages, unit="B", against=peer, ratio=ratio)


def _written(parts: Sequence[pa.Table], *, chosen: bool) -> Size:
    """Return the total size of files with these rows. Each part of the rows is one file."""
    sizes = []
    for rows in parts:
        sink = pa.BufferOutputStream()
        write(rows, sink, choose(rows, rows.num_rows) if chosen else None)
        sizes.append(_size(pa.BufferReader(sink.getvalue())))
    return _total(sizes)


def write(
    rows: pa.Table,
    sink: pa.NativeFile | Path,
    encodings: Mapping[str, Encoding] | None,
    *,
    page_rows: int = ROWS_PER_PAGE,
) -> None:
    """Write rows as a file with the settings of a split and with these encodings.

    If the encodings are None, Arrow selects its default encodings.
    """
    others = {name: each.value for name, each in (encodings or {}).items() if each is not Encoding.DICTIONARY}
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=[name for name in rows.column_names if name not in others],
        column_encoding=others or None,
        dictionary_pagesize_limit=None if encodings is None else CHOSEN_DICTIONARY_BYTES,
        row_group_size=ROWS_PER_GROUP,
        max_rows_per_page=page_rows,
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    )


def _size(file: Path | pa.NativeFile) -> Size:
    whole = file.stat().st_size if isinstance(file, Path) else file.size()
    footer = pq.read_metadata(file)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    pages = sum(group.column(index).total_compressed_size for group in groups for index in range(group.num_columns))
    return Size(whole, pages)


def _total(sizes: Sequence[Size]) -> Size:
    return reduce(Size.__add__, sizes)


def _reads(data: Data) -> Iterator[Metric]:
    context = data.context(windows=False)
    with tempfile.TemporaryDirectory() as folder:
        root, adds = Path(folder), list[Add]()
        share = -(-data.rows.num_rows // ARRIVING)
        for start in range(0, data.rows.num_rows, share):
            part = data.rows.slice(start, share)
            adds += sort_and_write(LocalStore(root), part, context=context, ids=SystemIds(), now_ms=start)
        merged = execute(LocalStore(root), CompactionTask(None, tuple(adds), context), ids=SystemIds(), now_ms=1).adds
        before, after = ([root / add.path for add in each] for each in (adds, merged))
        for query, text in data.queries.items():
            read = max(1, bytes_read(after, text))
            yield Metric(
                name=f"{data.name}, read for {query}",
                value=read,
                unit="B",
                against=f"{len(before)} splits as they arrived",
                ratio=bytes_read(before, text) / read,
            )


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
