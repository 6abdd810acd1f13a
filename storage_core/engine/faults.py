"""Tidemark's own error texts for the faults that DuckDB finds in a statement.

Messages never contain DuckDB's own text. `fault_of` translates the errors that users see. For every other error,
`fault_of` returns a general sentence. If DuckDB's error contains a position in the statement, the sentence that
replaces the error contains the same position. The library's error remains the cause of the raised error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from storage_core.base.text import did_you_mean, listed, quoted, shortened

_MARK = re.compile(r"\n\nLINE \d+: (?P<line>[^\n]*)\n(?P<before> *)(?P<marks>\^+)[^\n]*\s*$")
_QUOTED = re.compile(r'"([^"]+)"')
_CLASS = re.compile(r"^(?:[A-Z][A-Za-z]*(?: [A-Za-z]+)* Error|Error): ")

_SQL_TYPES: Final = {
    "BOOL": "BOOLEAN",
    "INT8": "TINYINT",
    "INT16": "SMALLINT",
    "INT32": "INTEGER",
    "INT64": "BIGINT",
    "INT128": "HUGEINT",
    "UINT8": "UTINYINT",
    "UINT16": "USMALLINT",
    "UINT32": "UINTEGER",
    "UINT64": "UBIGINT",
    "INTEGER_LITERAL": "INTEGER",
    "STRING_LITERAL": "VARCHAR",
}
"""The names of types in DuckDB's errors, each with the name of the type in SQL as the value."""

_TRY = "Use try_cast to get null, or correct the text"


def syntax_fault(text: str, statement: str | None = None) -> str:
    """Return the place or the kind of a syntax error, such as ` near 'x'`, or an empty text if neither is known.

    Args:
        text: The text of the error.
        statement: The text that the user wrote, if it is only a part of the parsed text. If the place is not in this
            part, the end of this part is missing.
    """
    near = re.search(r'near "(.*)"', text, re.DOTALL)
    if near is not None:
        return f" near {quoted(near[1])}" if statement is None or near[1] in statement else ": its end is missing"
    if text.startswith("unterminated"):
        return ": a quote is not closed"
    return ": its end is missing" if "end of input" in text else ""


def unknown_function(name: str) -> str:
    """Return the fault text for a call of an unknown function."""
    return f"unknown function {quoted(name)}. Use a function that DuckDB has"


def fault_of(text: str, *, is_condition: bool = False) -> str:
    """Return the fault that a DuckDB error about a statement describes, and advice.

    Args:
        text: The text of the error.
        is_condition: Whether the statement is a condition or an expression. Otherwise it is a query.
    """
    mark = _MARK.search(text)
    core = _CLASS.sub("", text[: mark.start()] if mark else text)
    for pattern, said in _FAULTS:
        found = pattern.match(core)
        if found is not None:
            return said(found) if callable(said) else said
    if core.startswith("WHERE clause cannot contain"):
        what = "an aggregate" if "aggregates" in core else "a window function"
        advice = "Leave it out" if is_condition else "Use HAVING or QUALIFY"
        return f"the condition contains {what}. {advice}"
    place = _place(mark)
    kind = text.partition(":")[0]
    general, advice = _GENERAL.get(kind, ("a part of the text cannot be evaluated", "Correct this part"))
    return f"{general}{f' near {quoted(place)}' if place else ''}. {advice}"


_GENERAL: Final = {
    "Parser Error": ("the text is not valid SQL", "Correct this part"),
    "Binder Error": ("a name or a type does not fit", "Correct this part"),
    "Catalog Error": ("a name is unknown", "Correct this part"),
    "Conversion Error": ("a value cannot be converted to another type", "Use try_cast to get null, or another type"),
    "Invalid Input Error": ("a function refuses a value", "Check the arguments, or leave these rows out"),
    "Out of Range Error": ("a value is out of range", "Use smaller values or a larger type"),
    "Permission Error": ("the text reads something that a query may not read", "Read only the given tables"),
    "Not implemented Error": ("the text uses something that DuckDB does not support", "Write this part in another way"),
}


def _place(mark: re.Match[str] | None) -> str:
    """Return the marked part of the statement, or an empty text.

    DuckDB cuts a long line and writes dots at the cut. The result is empty if DuckDB's message does not contain the
    marked line of the statement.
    """
    if mark is None:
        return ""
    begin = len(mark["before"]) - (mark.start("line") - mark.start() - len("\n\n"))
    return shortened(mark["line"][max(0, begin) : max(0, begin) + len(mark["marks"])].strip(), 80)


def _sql_type(name: str) -> str:
    return shortened(_SQL_TYPES.get(name, name), 80)


def _types(text: str) -> str:
    """Return the types in a list of arguments, such as `VARCHAR and INTEGER`."""
    parts, depth, start = list[str](), 0, 0
    for place, sign in enumerate(f"{text},"):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            parts.append(_sql_type(f"{text},"[start:place].strip()))
            start = place + 1
    *first, last = parts
    return f"{listed(first)} and {last}" if first else last


_OPERATORS: Final = {
    "~~": "LIKE",
    "!~~": "NOT LIKE",
    "~~*": "ILIKE",
    "!~~*": "NOT ILIKE",
    "~~~": "GLOB",
    "__between": "BETWEEN",
    "__postfix": "!",
    "->>": "->>",
}
"""The names of operators in DuckDB's errors, each with the operator in SQL as the value."""


def _call(found: re.Match[str]) -> str:
    name, types = _OPERATORS.get(found["name"], found["name"]), found["types"]
    if not types:
        return f"the function {shortened(name)} needs arguments. Give the arguments"
    return (
        f"no function {shortened(name)} takes {_types(types)}. Cast an argument to another type, such as cast(x as int)"
    )


def _value(found: re.Match[str]) -> str:
    where = f" (column {quoted(found['column'])})" if found["column"] else ""
    return f"the text {quoted(found['value'])} is not a value of the type {_sql_type(found['type'])}{where}. {_TRY}"


def _column(found: re.Match[str]) -> str:
    name = found["name"]
    near = did_you_mean(name, _QUOTED.findall(found.string[found.end() :]))
    return f"unknown column {quoted(name)}{near or '. Use a column of the table'}"


def _field(found: re.Match[str]) -> str:
    has = listed(list(map(shortened, _QUOTED.findall(found.string[found.end() :]))))
    return f"the struct has no field {quoted(found['name'])}. {f'It has {has}' if has else 'Name one of its fields'}"


_RE2_FAULTS: Final = {
    "missing )": "a group is not closed",
    "missing ]": "a character class is not closed",
    "unexpected )": "a ) closes a group that is not open",
    "invalid named capture group": "the name of a group has characters other than letters, digits and _",
    "duplicate capture group name": "two groups have the same name",
    "no argument for repetition operator": "a *, + or ? has nothing before it",
    "bad repetition operator": "two of *, + and ? follow each other",
    "invalid repetition size": "a number of repetitions is too large",
    "invalid escape sequence": "a letter after \\ has no meaning",
    "invalid character class range": "a range of characters ends before it begins",
    "trailing \\": "the expression ends with \\",
    "invalid perl operator": "the expression uses a look-around or another group (?…) that RE2 does not support",
}
"""The faults of an RE2 expression. Each key is the beginning of RE2's own name for the fault."""


def re2_fault(text: str) -> str | None:
    """Return our description of the fault that an RE2 error names. Return None if RE2's name is unknown."""
    return next((said for name, said in _RE2_FAULTS.items() if text.startswith(name)), None)


def _expression(found: re.Match[str]) -> str:
    return (
        f"a regular expression is not valid: {re2_fault(found[0])}. Correct the expression at {quoted(found['part'])}"
    )


_Said = str | Callable[[re.Match[str]], str]


def _fault(pattern: str, said: _Said) -> tuple[re.Pattern[str], _Said]:
    return re.compile(pattern, re.DOTALL), said


_FAULTS: Final = (
    (
        re.compile(r".*(?:not valid UTF-?8|invalid unicode)", re.DOTALL | re.IGNORECASE),
        "a stored text is not valid UTF-8. Run tidemark fsck --deep, which names the split",
    ),
    _fault(
        r"No function matches the given name and argument types '(?P<name>[^\n]+?)\((?P<types>[^\n]*)\)'\.",
        _call,
    ),
    _fault(
        r'Could not choose a best candidate function for the function call "(?P<name>[^\n]+?)\((?P<types>[^\n]*)\)"\.',
        _call,
    ),
    _fault(
        r"Could not convert string ['\"](?P<value>.*)['\"] to (?P<type>.+?)"
        r"(?: when casting from source column (?P<column>[^\n]+))?$",
        _value,
    ),
    _fault(
        r"Type (?P<from>[^\n]+) with value (?P<value>.+) can't be cast because the value is out of range for the "
        r"destination type (?P<type>[^\n]+)",
        lambda found: (
            f"the value {shortened(found['value'], 80)} is out of the range of the type {_sql_type(found['type'])}. "
            "Cast the value to a larger type"
        ),
    ),
    _fault(
        r"Unimplemented type for cast \((?P<from>.+?) -> (?P<type>.+?)\)",
        lambda found: (
            f"a value of the type {_sql_type(found['from'])} cannot be cast to {_sql_type(found['type'])}. Cast "
            "the value to VARCHAR first, or use a function such as to_timestamp"
        ),
    ),
    _fault(
        r'(?:date|time|timestamp|interval) field value out of range: "(?P<value>.*)"',
        lambda found: f"the text {quoted(found['value'])} is not a valid date or time. {_TRY}",
    ),
    _fault(
        r'invalid (?P<what>date|time|timestamp) field format: "(?P<value>.*?)"',
        lambda found: f"the text {quoted(found['value'])} is not a {found['what']}. {_TRY}",
    ),
    _fault(
        r'Could not parse string "(?P<value>.*)" according to format specifier "(?P<format>[^"]*)"',
        lambda found: (
            f"the text {quoted(found['value'])} does not have the format {quoted(found['format'])}. Use try_strptime "
            "to get null, or leave these rows out"
        ),
    ),
    _fault(
        r"(?:ORDER|GROUP BY) term out of range - should be between 1 and (?P<most>\d+)",
        lambda found: f"ORDER BY or GROUP BY has a column number that is out of range. Give 1 to {found['most']}",
    ),
    _fault(
        r'extract specifier "(?P<name>.*?)" not recognized',
        lambda found: f"{quoted(found['name'])} is not a part of a date. Give a part such as 'hour', 'day' or 'month'",
    ),
    _fault(r"LIMIT/OFFSET cannot be negative", "LIMIT or OFFSET is negative. Give 0 or more"),
    _fault(r"Date out of range", "a date does not exist. Check the year, the month and the day"),
    _fault(r"Map keys must be unique", "a map has a key twice. Give each key once"),
    _fault(rf"(?:{'|'.join(map(re.escape, _RE2_FAULTS))}): (?P<part>.*)", _expression),
    _fault(r"Malformed JSON", "a text is not valid JSON. Leave these rows out with json_valid"),
    _fault(
        r"Overflow in ",
        "the result of an operation is too large for its type. Cast an operand to a larger type, such as HUGEINT or "
        "DOUBLE",
    ),
    _fault(
        r'column "(?P<name>.+?)" must appear in the GROUP BY clause',
        lambda found: (
            f"the column {quoted(found['name'])} is neither in GROUP BY nor in an aggregate. Add the column to "
            f"GROUP BY, or use any_value({shortened(found['name'])})"
        ),
    ),
    _fault(
        r"aggregate function calls cannot be nested",
        "an aggregate contains another aggregate. Compute the inner aggregate in a subquery",
    ),
    _fault(
        r"(?P<what>Window|UNNEST)[^\n]* not supported here",
        lambda found: (
            f"{'a window function' if found['what'] == 'Window' else 'unnest'} is not allowed here. Compute "
            "this value in a subquery"
        ),
    ),
    _fault(
        r"Cannot compare values of type (?P<one>.+?) and type (?P<two>.+?) - ",
        lambda found: (
            f"{_sql_type(found['one'])} cannot be compared with {_sql_type(found['two'])}. Cast one of the values to "
            "the other type"
        ),
    ),
    _fault(
        r'Ambiguous reference to column name "(?P<name>.+?)"',
        lambda found: (
            f"the column {quoted(found['name'])} is in several tables. Write the name of the table before the column"
        ),
    ),
    _fault(
        r'Referenced table "(?P<name>.+?)" not found',
        lambda found: f"unknown table {quoted(found['name'])}. Use a table of the FROM clause",
    ),
    _fault(
        r'(?:Referenced column|Column) "(?P<name>.+?)" (?:in (?:EXCLUDE|REPLACE|RENAME) list )?not found in', _column
    ),
    _fault(r'[^\n]* does not have a column named "(?P<name>.+?)"', _column),
    _fault(
        r'Could not find key "(?P<name>.+?)" in struct',
        _field,
    ),
    _fault(
        r"(?:[A-Za-z]+ )?Function with name (?P<name>\S+) does not exist",
        lambda found: unknown_function(found["name"]),
    ),
    _fault(
        r"Table with name (?P<name>.+?) does not exist",
        lambda found: f"unknown table {quoted(found['name'])}. Correct its name",
    ),
    _fault(
        r"Set operations can only apply",
        "the SELECTs of a set operation have different numbers of columns. Select the same number of columns "
        "in each SELECT",
    ),
    _fault(
        r"Subquery returns \d+ columns",
        "a subquery used as a value returns several columns. Select one column in the subquery",
    ),
    _fault(r"More than one row returned by a subquery", "a subquery used as a value returns several rows. Add limit 1"),
    _fault(
        r"DECIMAL type width must be",
        "the type DECIMAL has from 1 to 38 digits. Write a type with at most 38 digits, for example decimal(38, 2)",
    ),
    _fault(
        r"No files found that match the pattern \"(?P<name>.*)\"",
        lambda found: f"no file matches {quoted(found['name'])}. Correct the path",
    ),
)
