"""Plots as SVG, drawn here: a heat map, bars in pairs, and lines over time. No script, nothing from elsewhere.

Each mark says what it stands for in its `title`, which a browser shows under the pointer. All text is escaped.
"""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.foreign_text import escaped

WIDTH: Final = 960
_LABELS: Final = 90
_PLOT: Final = WIDTH - _LABELS - 10
_HEIGHT: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a heat map: where it is, how strong (0 to 1), and what it stands for."""

    row: int
    column: int
    strength: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two bars beside each other and what they stand for."""

    before: float
    after: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a time in ms, and what it stands for."""

    at: int
    value: float
    title: str


def text(given: str) -> str:
    """Return any text as it may stand in HTML and SVG, in an attribute too."""
    return html.escape(escaped(given, keep="\n"))


def minute(milliseconds: int) -> str:
    """Return a time (UTC) to the minute; of a year that no calendar has, the number."""
    try:
        instant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return f"{instant:%Y-%m-%d %H:%M}"


def heat_map(name: str, rows: Sequence[str], columns: int, cells: Sequence[Cell]) -> str:
    """Return a heat map with a label per row."""
    width, height = min(24.0, _PLOT / max(columns, 1)), 16
    marks = [f'<text x="0" y="{number * height + 12}">{text(label)}</text>' for number, label in enumerate(rows)]
    marks += [
        f'<rect class="cell" x="{_LABELS + each.column * width:.1f}" y="{each.row * height}" width="{width - 1:.1f}" '
        f'height="{height - 1}" fill-opacity="{0.15 + 0.85 * each.strength:.2f}">'
        f"<title>{text(each.title)}</title></rect>"
        for each in cells
    ]
    return _svg(name, len(rows) * height, marks)


def pairs(name: str, found: Sequence[Pair]) -> str:
    """Return bars in pairs, from left to right."""
    most = max((max(each.before, each.after) for each in found), default=0) or 1
    step = min(40.0, _PLOT / max(len(found), 1))
    marks = [_axis(most)]
    for number, each in enumerate(found):
        left = _LABELS + number * step
        bars = ((each.before, left, "before"), (each.after, left + step * 0.4, "after"))
        drawn = (
            f'<rect class="{kind}" x="{x:.1f}" y="{_HEIGHT - _HEIGHT * value / most:.1f}" width="{step * 0.38:.1f}" '
            f'height="{_HEIGHT * value / most:.1f}"/>'
            for value, x, kind in bars
        )
        marks.append(f'<g class="pair"><title>{text(each.title)}</title>{"".join(drawn)}</g>')
    return _svg(name, _HEIGHT, marks)


def line(name: str, points: Sequence[Point]) -> str:
    """Return one line over time that keeps each value until the next one."""
    most = max((each.value for each in points), default=0) or 1
    first, last = points[0].at, points[-1].at
    span = max(last - first, 1)
    places = [
        (_LABELS + _PLOT * (each.at - first) / span, _HEIGHT - _HEIGHT * each.value / most, each) for each in points
    ]
    path = f"M{places[0][0]:.1f},{places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y, _ in places[1:])
    dots = (
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{text(each.title)}</title></circle>'
        for x, y, each in places
    )
    times = (
        f'<text x="{_LABELS}" y="{_HEIGHT + 14}">{minute(first)}</text>'
        f'<text x="{WIDTH - 10}" y="{_HEIGHT + 14}" text-anchor="end">{minute(last)}</text>'
    )
    return _svg(name, _HEIGHT + 18, [_axis(most), f'<path class="line" d="{path}"/>', *dots, times])


def _axis(most: float) -> str:
    return (
        f'<text x="0" y="12">{most:,.0f}</text><text x="0" y="{_HEIGHT}">0</text>'
        f'<path class="axis" d="M{_LABELS},0V{_HEIGHT}H{WIDTH - 10}"/>'
    )


def _svg(name: str, height: int, marks: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{text(name)}" viewBox="0 0 {WIDTH} {height + 2}" '
        f'width="{WIDTH}" height="{height + 2}">{"".join(marks)}</svg>'
    )
