"""Reading any declaration text succeeds or raises a typed error with file and line. The check takes linear time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.change import declaration, declaration_file
from tests.support.scale import scaled

GOOD = "name: t\nuri: t\ncolumns: {a: int}\n"
PIECES = st.sampled_from(
    [
        "[", "]", "{", "}", "- ", "? ", ": ", ", ", "\n", "  ", "a: ", "&a ", "*a", "&b ", "*b", "<<: ",
        "!!python/name:x ",
        "!!str ", "!t ", "! ", "'", '"', "|", ">", "#", "%TAG ! x\n", "---\n", "...\n", "\t", "name: t\n", "uri: t\n",
        "columns: {a: int}\n", "window: ", "9" * 50, "\\u0000", "\x00", "\ufeff", "\u2028", "é", "0x1F", ".inf", "~",
        "2024-01-01",
    ]
)  # fmt: skip


def bomb(levels: int, width: int) -> str:
    lines = ["x0: &x0 [" + ",".join(["a"] * width) + "]"]
    lines += [f"x{each}: &x{each} [" + ",".join([f"*x{each - 1}"] * width) + "]" for each in range(1, levels)]
    return "\n".join(lines) + "\n"


def chain(levels: int) -> str:
    """Return lists in YAML. Each list contains an alias of the previous list.

    The text is not nested, but the value is deeply nested.
    """
    return "x0: &x0 [a]\n" + "".join(f"x{each}: &x{each} [*x{each - 1}]\n" for each in range(1, levels))


HOSTILE: dict[str, Callable[[int], str]] = {
    "brackets": lambda size: "[" * size,
    "braces": lambda size: "{a: " * size,
    "balanced brackets": lambda size: GOOD + "x: " + "[" * size + "]" * size,
    "dashes": lambda size: "- " * size,
    "question marks": lambda size: "? " * size,
    "indentation": lambda size: "".join(" " * each + "a:\n" for each in range(min(size, 600))),
    "a bomb of aliases": lambda size: GOOD + bomb(min(size, 40), 9),
    "a chain of aliases": lambda size: GOOD + chain(size // 10),
    "an alias of itself": lambda _: "a: &a [*a]\n",
    "an object": lambda _: GOOD + "x: !!python/object/apply:os.system ['exit 1']\n",
    "a tag of its own": lambda _: GOOD + "x: !secret y\n",
    "a long number": lambda size: GOOD + "partitions: {start: " + "9" * size + "}\n",
    "a long window": lambda size: GOOD + "time_column: a\nwindow: " + "9" * size + "\n",
    "a long decimal": lambda size: f"name: t\nuri: t\ncolumns: {{a: 'decimal({'9' * size},2)'}}\n",
    "a long retention": lambda size: GOOD + "gc: {horizon: " + "9" * size + "h}\n",
    "a long factor": lambda size: GOOD + "compaction: {factor: " + "9" * size + "}\n",
    "one field on one line twice": lambda _: "{name: t, name: u, uri: t, columns: {a: int}}\n",
    "one column twice": lambda _: "name: t\nuri: t\ncolumns: {a: int, a: long}\n",
    "a list as a name": lambda _: GOOD + "? [a, b]\n: c\n",
    "many anchors": lambda size: GOOD + "".join(f"x{each}: &a{each} b\n" for each in range(size // 10)),
    "many documents": lambda size: "---\na: b\n" * (size // 10),
    "quotes": lambda size: GOOD + "x: " + "'" * size,
    "a long line": lambda size: GOOD + "x: " + "a " * size,
    "many lines": lambda size: GOOD + "x:\n" + "  a\n" * (size // 4),
    "colons": lambda size: GOOD + "x: " + "a: " * size,
}


def calls_of(act: Callable[[], object]) -> int:
    """Return the number of function calls of the action.

    A test compares this number in place of the run time, because this number is repeatable.
    """
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def refusal(folder: Path, text: str) -> str:
    file = folder / "t.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        declaration.load(file)
    return str(refused.value)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_declaration_is_refused_with_file_and_line(kind: str, tmp_path: Path) -> None:
    for size in (10_000, 5_000_000):
        message = refusal(tmp_path, HOSTILE[kind](size))
        assert message.startswith(f"{tmp_path}/t.yaml:")
        assert len(message.splitlines()) <= 101


@pytest.mark.parametrize("kind", HOSTILE)
def test_reading_takes_steps_in_proportion_to_the_size(kind: str) -> None:
    def read(size: int) -> int:
        data = HOSTILE[kind](size).encode()

        def act() -> None:
            try:
                declaration_file.parse_yaml(data, "t.yaml")
            except InvalidInput:
                return

        return calls_of(act)

    assert read(20_000) <= 4.5 * read(5_000) + 10_000


def test_what_an_alias_shares_is_read_where_it_is_small() -> None:
    found = declaration_file.parse_yaml(b"a: &x [1, {b: 2}]\nc: *x\nd: !!str 5\n", "t.yaml")
    assert found.value == {"a": ["1", {"b": "2"}], "c": ["1", {"b": "2"}], "d": "5"}


def test_a_declaration_of_a_thousand_columns_is_read(tmp_path: Path) -> None:
    columns = "".join(f"  column_{each}: {{type: string, nullable: false}}\n" for each in range(1000))
    file = tmp_path / "t.yaml"
    file.write_text(f"name: t\nuri: t\ncolumns:\n{columns}")
    assert len(declaration.load(file).columns) == 1000


@settings(max_examples=scaled(2000))
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_a_value_of_text_or_a_refusal(text: str) -> None:
    try:
        found = declaration_file.parse_yaml(text.encode(), "t.yaml")
    except InvalidInput as refused:
        assert str(refused).startswith("t.yaml:")  # noqa: PT017  # most are values, and those are looked at below
        return
    waiting = [found.value]
    while waiting:
        each = waiting.pop()
        assert isinstance(each, str | list | dict)
        if isinstance(each, dict):
            assert all(isinstance(name, str) for name in each)
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
