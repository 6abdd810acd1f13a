"""Landed files to rows: every line becomes a row of the table's schema or a rejection with its number and reason.

Parsing runs in whole blocks (Arrow and DuckDB kernels), never line by line, and holds a few blocks in memory whatever
the size of the file. A file that cannot be read to its end gives no row at all: it is one rejection without a line.
docs/architecture/ingestion.md.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator
from typing import assert_never

import duckdb
import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput, Unavailable
from storage_core.ingest.content import ContentHash
from storage_core.ingest.convert import RowFormat
from storage_core.ingest.csv_files import csv_blocks
from storage_core.ingest.landing import LandedFile, LandingSpec, open_bytes, open_text
from storage_core.ingest.line_files import ndjson_blocks, pattern_blocks
from storage_core.ingest.lines import BLOCK_BYTES
from storage_core.ingest.parquet_files import parquet_blocks
from storage_core.ingest.rejection import Parsed, RejectedLine
from storage_core.ingest.time_format import check_time_format
from storage_core.system_errors import out_of_memory


def parse(
    landed: LandedFile,
    spec: LandingSpec,
    schema: pa.Schema,
    time_column: str | None,
    *,
    nonzero: Collection[str] = (),
) -> Parsed:
    """Return the whole file at once; see `parse_blocks`."""
    blocks = list(parse_blocks(landed, spec, schema, time_column, nonzero=nonzero))
    if blocks and blocks[-1].unreadable:
        return blocks[-1]
    rows = pa.concat_tables([schema.empty_table(), *(block.rows for block in blocks)])
    return Parsed(rows, tuple(line for block in blocks for line in block.rejected))


def parse_blocks(
    landed: LandedFile,
    spec: LandingSpec,
    schema: pa.Schema,
    time_column: str | None,
    *,
    nonzero: Collection[str] = (),
    block_bytes: int = BLOCK_BYTES,
    content: ContentHash | None = None,
) -> Iterator[Parsed]:
    """Yield the file in blocks; a last one marked `unreadable` takes back all before it.

    Rows keep the order of the file. Unreadable are a cut or damaged gzip or Parquet file, one whose columns are not the
    table's, and one that changed since it was listed. Raises `NotFound` when the file is gone, `Unavailable` when the
    place cannot be read or memory does not suffice, and `InvalidInput` when the spec does not fit the schema: no file
    could be read with it. Vectors of the columns `nonzero` that are zero are rejected. `content` knows the file's bytes
    once the last block of a readable file was taken.
    """
    if spec.time_format is not None:
        check_time_format(spec.time_format)
    target = RowFormat(schema, time_column, spec.time_format, spec.null_values, nonzero=frozenset(nonzero))
    try:
        yield from _blocks(landed, spec, target, block_bytes=block_bytes, content=content)
    except (Corrupt, EOFError, zlib.error, gzip.BadGzipFile) as error:
        found = error.found if isinstance(error, Corrupt) else error
        reason = f"the file cannot be used: {found}; land it again, whole, under a new name"
        yield Parsed(schema.empty_table(), (RejectedLine(landed.path, None, reason, ""),), unreadable=True)
    except (OSError, MemoryError, duckdb.Error) as error:
        if out_of_memory(error):
            problem = (str(error).splitlines() or ["MemoryError"])[0]
            raise Unavailable(
                f"{landed.uri}/{landed.path}: to read it takes more memory than there is ({problem}); give the task "
                "more, or land it in pieces",
                file=landed.path,
            ) from error
        if not isinstance(error, OSError):
            raise
        raise Unavailable(f"{landed.uri}/{landed.path}: {error}", file=landed.path) from error


def _blocks(
    landed: LandedFile, spec: LandingSpec, target: RowFormat, *, block_bytes: int, content: ContentHash | None
) -> Iterator[Parsed]:
    if spec.format == "parquet":
        with open_bytes(landed, content) as stream:
            yield from parquet_blocks(landed.path, stream, target.schema, nonzero=target.nonzero)
        return
    with open_text(landed, content) as stream:
        match spec.format:
            case "pattern":
                pattern = spec.pattern or ""
                yield from pattern_blocks(landed.path, stream, target, pattern=pattern, block_bytes=block_bytes)
            case "ndjson":
                yield from ndjson_blocks(landed.path, stream, target, block_bytes=block_bytes)
            case "csv":
                yield from csv_blocks(landed.path, stream, target, block_bytes=block_bytes)
            case "delta":
                raise InvalidInput(f"{landed.path}: a Delta table is read by its versions, not by file")
            case _:
                assert_never(spec.format)
