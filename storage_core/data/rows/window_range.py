"""The windows that a step processes, and their form as command-line arguments."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted

NULL_WINDOW = "null"


@dataclass(frozen=True, slots=True)
class WindowRange:
    """The windows that start in [start, end), in seconds since the epoch.

    If a bound is None, the range has no bound on that side.

    With `null_only`, the range contains only the bucket of rows without a time.
    """

    start: int | None = None
    end: int | None = None
    null_only: bool = False

    def holds(self, window: int | None) -> bool:
        """Return whether the window with this start is in the range.

        A range without bounds also contains the null bucket.
        """
        if window is None or self.null_only:
            return window is None and (self.null_only or (self.start is None and self.end is None))
        return (self.start is None or window >= self.start) and (self.end is None or window < self.end)

    def require_fits(self, window_seconds: int | None, former: Sequence[int] = ()) -> None:
        """Raise `InvalidInput` unless the range is valid for a table with windows of this length.

        For a table without windows, a range must have no bounds. A range of a single window must begin at the start of
        a window.

        Args:
            window_seconds: The length of the table's windows. None for a table without windows.
            former: The former lengths, which windows of the table may also have.
        """
        bounds = [each for each in (self.start, self.end) if each is not None]
        if window_seconds is None and bounds:
            raise InvalidInput("the table has no windows. Leave out --window, --from and --to")
        one = self.start is not None and self.end == self.start + 1
        if one and window_seconds is not None and all(bounds[0] % each for each in (window_seconds, *former)):
            holder = bounds[0] - bounds[0] % window_seconds
            raise InvalidInput(
                f"no window starts at {window_name(bounds[0])}. Windows of this table are {window_seconds} s long. "
                f"Give {window_name(holder)}, the window that contains this time",
                window=holder,
            )

    def select(self, windows: Iterable[int | None]) -> set[int | None]:
        """Return the given windows that are in the range."""
        return {window for window in windows if self.holds(window)}


EVERY_WINDOW = WindowRange()


def to_argv(windows: WindowRange) -> Sequence[str]:
    """Return the command-line arguments for this range: --window, --from and --to.

    `window_range` reads these arguments.
    """
    if windows.null_only:
        return [f"--window={NULL_WINDOW}"]
    bounds = {"--from": windows.start, "--to": windows.end}
    return [f"{name}={value}" for name, value in bounds.items() if value is not None]


def window_range(window: str | None, start: str | None = None, end: str | None = None) -> WindowRange:
    """Return the range of one window, or of several windows between two bounds.

    If no argument is given, return `EVERY_WINDOW`.
    """
    if window is not None and (start is not None or end is not None):
        raise InvalidInput("give either --window or --from/--to, not both. Leave one of them out")
    if window == NULL_WINDOW:
        return WindowRange(null_only=True)
    if window is not None:
        first = parse_window(window, "--window")
        return WindowRange(first, first + 1)
    return WindowRange(
        None if start is None else parse_window(start, "--from"),
        None if end is None else parse_window(end, "--to"),
    )


def window_name(window: int | None) -> str:
    """Return the name of a window: the UTC time of its start, or `null`. `parse_window` reads the UTC time.

    If the time is outside of the years 1 to 9999, the name contains the seconds.
    """
    if window is None:
        return NULL_WINDOW
    try:
        start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=window)
    except OverflowError:
        return f"{window} s"  # tables of older releases may contain times outside of the years 1 to 9999
    return start.replace(tzinfo=None).isoformat(timespec="seconds" if start.second else "minutes")


def parse_window(text: str, where: str = "") -> int:
    """Return the start of a window in seconds since the epoch.

    The text is a UTC time (`2015-05-17T10:00`) or seconds. Errors begin with `where`, the name of the option that
    contains the text.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{f'{where}: ' if where else ''}{quoted(text)} is not a time. Write the time as 2015-05-17T10:00 (UTC)"
        ) from error
    return int((instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)).timestamp())
