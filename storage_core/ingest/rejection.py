"""What parsing a landed file gives: rows of the table's schema, and every line that is none, with its reason."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.ingest.convert import RowFormat, convert
from storage_core.rows.schema import conform

NOT_TEXT = "the line is not UTF-8"


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """What could not become a row. `line` counts from 1 (of CSV and Parquet: records); None rejects the whole file.

    `text` is the line as it stands in the file (of CSV and Parquet: its values), in base64 where it is not UTF-8.
    """

    file: str
    line: int | None
    reason: str
    text: str
    encoding: Literal["utf-8", "base64"] = "utf-8"


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows of exactly the table's schema, and what was rejected. `unreadable`: none of the file's rows may be used."""

    rows: pa.Table
    rejected: tuple[RejectedLine, ...]
    unreadable: bool = False

    def and_rejected(self, more: Iterable[RejectedLine]) -> Parsed:
        """Return the same rows with more rejections, all in line order."""
        rejected = sorted([*self.rejected, *more], key=lambda each: each.line or 0)
        return replace(self, rejected=tuple(rejected))


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one block as text: a column per field, the number of each, and the text of the i-th on demand."""

    file: str
    fields: pa.Table
    numbers: npt.NDArray[np.int64]
    text_of: Callable[[int], str]


def convert_or_reject(records: Records, target: RowFormat) -> Parsed:
    """Convert the records to rows; those that do not convert are rejected. Raises what `convert` raises."""
    converted = convert(records.fields, target)
    fits = converted.reasons.is_null()
    bad = np.flatnonzero(~np.asarray(fits))
    refused = tuple(
        RejectedLine(
            records.file,
            int(records.numbers[index]),
            converted.reasons[int(index)].as_py(),
            records.text_of(int(index)),
        )
        for index in bad
    )
    rows = converted.rows.filter(fits) if len(bad) else converted.rows
    return Parsed(conform(rows, target.schema), refused)


def rejected(file: str, number: int, reason: str, data: bytes) -> RejectedLine:
    """Reject one line, its bytes kept in base64 where they are not UTF-8."""
    try:
        return RejectedLine(file, number, reason, data.decode())
    except UnicodeDecodeError:
        return RejectedLine(file, number, reason, base64.b64encode(data).decode("ascii"), "base64")


def not_text(file: str, lines: Iterable[tuple[int, bytes]]) -> list[RejectedLine]:
    """Reject lines that are not UTF-8."""
    return [rejected(file, number, NOT_TEXT, data) for number, data in lines]
