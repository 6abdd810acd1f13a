"""Which windows a job is asked for, and their form as command-line arguments."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage_core.errors import InvalidInput

NULL_WINDOW = "null"


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Windows that start in [start, end), in seconds since the epoch; None leaves that side open.

    `null_only` selects the bucket of rows without a time instead.
    """

    start: int | None = None
    end: int | None = None
    null_only: bool = False

    def holds(self, window: int | None) -> bool:
        """Return whether a window, by its start, is in the range; one open on both sides holds the null bucket."""
        if window is None or self.null_only:
            return window is None and (self.null_only or (self.start is None and self.end is None))
        return (self.start is None or window >= self.start) and (self.end is None or window < self.end)

    def require_fits(self, window_seconds: int | None, former: Sequence[int] = ()) -> None:
        """Raise `InvalidInput` unless a table with windows of this length has the range; None is one without windows.

        Of `former` lengths it may have windows as well.

        It has no bounds in a table without windows, and no single window by a time that is not its start.
        """
        bounds = [each for each in (self.start, self.end) if each is not None]
        if window_seconds is None and bounds:
            raise InvalidInput("the table has no windows; leave out --window, --from and --to")
        one = self.start is not None and self.end == self.start + 1
        if one and window_seconds is not None and all(bounds[0] % each for each in (window_seconds, *former)):
            holder = bounds[0] - bounds[0] % window_seconds
            raise InvalidInput(
                f"no window starts at {window_name(bounds[0])}; the one that holds it is {window_name(holder)}: "
                f"windows of this table are {window_seconds} s long",
                window=holder,
            )

    def select(self, windows: Iterable[int | None]) -> set[int | None]:
        """Return those of the given windows that are in the range."""
        return {window for window in windows if self.holds(window)}


EVERY_WINDOW = WindowRange()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name windows to a parser."""
    which = parser.add_argument_group("windows (default: all)")
    which.add_argument("--window", help="one window by its start: 2015-05-17T10:00 (UTC), seconds, or 'null'")
    which.add_argument("--from", dest="start", help="first window, inclusive")
    which.add_argument("--to", dest="end", help="end of the range, exclusive")


def parse(arguments: argparse.Namespace) -> WindowRange:
    """Return the range for parsed arguments. Raises `InvalidInput` for a window that cannot be read."""
    return window_range(arguments.window, arguments.start, arguments.end)


def to_argv(windows: WindowRange) -> Sequence[str]:
    """Return the arguments that `parse` reads back as this range."""
    if windows.null_only:
        return [f"--window={NULL_WINDOW}"]
    bounds = {"--from": windows.start, "--to": windows.end}
    return [f"{name}={value}" for name, value in bounds.items() if value is not None]


def window_range(window: str | None, start: str | None = None, end: str | None = None) -> WindowRange:
    """Return the range for one window, or for the bounds of several; without any, the range that holds everything."""
    if window is not None and (start is not None or end is not None):
        raise InvalidInput("give either --window or --from/--to, not both")
    if window == NULL_WINDOW:
        return WindowRange(null_only=True)
    if window is not None:
        first = window_start(window)
        return WindowRange(first, first + 1)
    return WindowRange(
        None if start is None else window_start(start),
        None if end is None else window_start(end),
    )


def window_name(window: int | None) -> str:
    """Return what people call a window, by its start: a UTC time as `window_start` reads it, or `null`.

    Of a time that no calendar has, the seconds.
    """
    if window is None:
        return NULL_WINDOW
    try:
        start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=window)
    except OverflowError:
        return f"{window} s"  # tables of older releases may hold times that no calendar has
    return start.replace(tzinfo=None).isoformat(timespec="seconds" if start.second else "minutes")


def window_start(text: str) -> int:
    """Return the start of a window named by UTC time (`2015-05-17T10:00`) or by seconds, in seconds since the epoch."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"the window {text!r} is neither a time like 2015-05-17T10:00 nor seconds") from error
    return int((instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)).timestamp())
