"""Windows: fixed, epoch-aligned intervals of event time, named by their start in seconds.

Floor division everywhere, before 1970 too. A duration divides the hour, so that a time stamp lies in exactly one window
whatever its zone; whole-hour multiples are an extension of ours that a table has to ask for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput

WINDOW_SECONDS = frozenset(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60))
COARSE_WINDOW_SECONDS = frozenset(3600 * hours for hours in (2, 3, 4, 6, 8, 12, 24))

# Days of more than five digits would not fit a 64-bit number of microseconds.
_DURATION = re.compile(r"(?!\d{6,}d)(\d{1,9})(ms|[smhd]?)")
_UNIT_MS: Mapping[str, int] = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TICKS_PER_SECOND: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def parse_duration(value: str | int) -> int:
    """Return the whole seconds of what `parse_milliseconds` reads. Raises `InvalidInput`; does not judge them."""
    seconds, rest = divmod(parse_milliseconds(value), 1000)
    if rest:
        raise InvalidInput(f"{value!r} is not a whole number of seconds")
    return seconds


def parse_milliseconds(value: str | int) -> int:
    """Return milliseconds for `900` or `"900"` (seconds), `"500ms"`, `"90s"`, `"15m"`, `"1h"` or `"30d"`.

    The one grammar of durations. Raises `InvalidInput` for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise InvalidInput(f"{value!r} is not a duration; write seconds or a number with ms, s, m, h or d, such as 15m")
    return int(found[1]) * _UNIT_MS[found[2]]


def validate_duration(seconds: int, *, coarse: bool = False) -> int:
    """Return `seconds` if it may be a window duration; `coarse` also admits 2, 3, 4, 6, 8, 12 and 24 hours.

    Raises `InvalidInput` otherwise, naming what is allowed.
    """
    if seconds in WINDOW_SECONDS or (coarse and seconds in COARSE_WINDOW_SECONDS):
        return seconds
    minutes = ", ".join(str(each // 60) for each in sorted(WINDOW_SECONDS))
    if seconds in COARSE_WINDOW_SECONDS:
        raise InvalidInput(
            f"a window of {seconds} s is coarse; ask for a coarse window, or use one of {minutes} minutes",
            window_seconds=seconds,
        )
    hours = ", ".join(str(each // 3600) for each in sorted(COARSE_WINDOW_SECONDS))
    raise InvalidInput(
        f"a window of {seconds} s does not divide the hour; use one of {minutes} minutes (coarse: {hours} hours)",
        window_seconds=seconds,
    )


def window_start(seconds: int, duration: int) -> int:
    """Return the start of the window that holds `seconds` since the epoch: the largest multiple not above it."""
    return seconds - seconds % duration


def by_start(window: int | None) -> tuple[bool, int]:
    """Return the sort key of windows by their start, the bucket of null timestamps last."""
    return window is None, window or 0


def window_starts(array: pa.ChunkedArray | pa.Array, duration: int) -> pa.Int64Array:
    """Return the window start of every time stamp in seconds, null for null; one array, in order.

    Takes timestamps of any unit, with a zone (instants) or without (taken as UTC). Raises `InvalidInput` for others.
    """
    column = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    if not pa.types.is_timestamp(column.type):
        raise InvalidInput(f"windows need a timestamp column, found {column.type}")
    ticks_per_window = duration * _TICKS_PER_SECOND[column.type.unit]
    ticks = column.cast(pa.int64()).combine_chunks()
    if isinstance(ticks, pa.ChunkedArray):  # a column without chunks stays one
        ticks = pa.concat_arrays([pa.array([], pa.int64()), *ticks.chunks])
    starts = np.floor_divide(ticks.fill_null(0).to_numpy(), ticks_per_window) * duration
    return pa.array(starts, pa.int64(), mask=ticks.is_null().to_numpy(zero_copy_only=False))


def split_by_window(table: pa.Table, time_column: str, duration: int) -> list[tuple[int | None, pa.Table]]:
    """Return the rows grouped by window, ascending, the bucket of null time stamps (None) last; empty groups left out.

    Rows keep their order inside a window, so sorted input gives sorted windows. Rows already grouped are sliced, not
    copied. An empty table gives an empty list.
    """
    if table.num_rows == 0:
        return []
    starts = window_starts(table.column(time_column), duration)
    codes, windows = _window_codes(starts)
    if np.any(codes[1:] < codes[:-1]):
        order = np.argsort(codes, kind="stable")
        table, codes = table.take(pa.array(order)), codes[order]
    bounds = np.searchsorted(codes, np.arange(len(windows) + 1))
    return [
        (window, table.slice(int(begin), int(end - begin)))
        for window, begin, end in zip(windows, bounds[:-1], bounds[1:], strict=True)
    ]


def _window_codes(starts: pa.Int64Array) -> tuple[npt.NDArray[np.int64], list[int | None]]:
    """Dense codes in window order, and the window of each code; the null bucket has the last code."""
    present: list[int] = pc.unique(starts.drop_null()).sort().to_pylist()
    windows: list[int | None] = [*present]
    codes = np.searchsorted(np.array(present, np.int64), starts.fill_null(0).to_numpy())
    if starts.null_count:
        windows.append(None)
        codes[starts.is_null().to_numpy(zero_copy_only=False)] = len(present)
    return codes.astype(np.int64), windows
