"""What the functions of a query make of a row: ordinary queries pass, layers upon layers do not."""

from __future__ import annotations

import pytest

from storage_core.engine.statement import check, parse
from storage_core.errors import InvalidInput

EIGHT = " || ".join(["s"] * 8)


def layers(expression: str, count: int) -> str:
    below = "t"
    for _ in range(count):
        below = f"(select {expression} as s from {below})"
    return f"select * from {below}"


def common_tables(expression: str, count: int) -> str:
    parts = [f"c{each + 1} as (select {expression} as s from {f'c{each}' if each else 't'})" for each in range(count)]
    return f"with {', '.join(parts)} from c{count}"


ORDINARY = (
    "select concat(a, b, c, d, e, f, g, h, i, j) from t",
    "select to_json(t), to_json({'a': a, 'b': [s]})::varchar from t",
    "select lpad(a, 20, '.'), lpad(b, 20, '.'), lpad(c, 20, '.'), lpad(d, 20, '.'), lpad(e, 20, '.') from t",
    f"select {', '.join(f'upper(c{each}) || lower(d{each}) as e{each}' for each in range(300))} from t",
    common_tables("upper(s) || '-' || lower(s)", 8),
    common_tables("concat(s, '/', s)", 3),
    "select levenshtein(s, 'chrome') < 3, jaro_similarity(left(s, 200), a) from t",
    "select list_transform(l, lambda x: x + a), [upper(x) for x in l if x <> s] from t",
    "with recursive r(p, n) as (select s, 1 from t union all select p || '/' || s, n + 1 from r, t where n < 5) from r",
    "with recursive f(a, b) as (select 1, 1 union all select b, a + b from f where b < 100) from f",
    "select string_agg(s, ', ' order by s), list(s), histogram(a) from t group by a",
    "from t pivot (count(*), max(s) for a in (1, 2) group by s)",
    "select * replace (s || s as s) from t",
    "select s || '!' as x, x || '?' as y from t where y <> '' order by length(y)",
    "select t.s.upper().lpad(20, '.') from t",
    "select repeat(s, 1000) from t",
    "select * from range(300000000)",
    "select split(s, ' ')[1], split_part(s, '/', 2), regexp_extract(s, 'a(b)', 1), strftime(d, '%Y-%m-%d') from t",
    "select columns(*) || 'x', concat(*columns(*)) from t",
    "select * from t a join t b on a.s || 'x' = b.s, lateral (select a.s || b.s)",
    "summarize t",
    "unpivot t on a, s into name n value v",
    "select concat_ws(), list_zip(), json_extract(), concat(), levenshtein('a', 'b')",
    "select a, sum(b) filter (b > 1) over w from t group by grouping sets ((a), ()) window w as (order by a) qualify 1",
    "(select 1 union select 2) intersect select a from t order by 1 limit (select 3)",
    "select {'a': s}.a, [1, 2][1:2], (select a), exists (select 1), array(select s from t), s collate nocase from t",
    "select t.* exclude a, t.* rename (a as b) from t positional join t b using sample 10%",
    "values (s, 1), ((select max(s) from t), 2)",
)
LARGE = (
    layers(EIGHT, 7),
    layers("to_json(s)", 7),
    layers("[s, s]::varchar", 5),
    layers("url_encode(s)", 13),
    common_tables("concat(s, s, s, s)", 10),
    f"select s || s as x0{''.join(f', x{each} || x{each} as x{each + 1}' for each in range(24))} from t",
    f"select {', '.join(['repeat(s, 1000)'] * 1_100)} from t",
    f"select concat(*columns(*)) from (select {', '.join([EIGHT] * 1_000)} from ({layers('repeat(s, 1000)', 1)}))",
    f"select * from t, lateral ({layers(EIGHT, 7)})",
    f"select s from t where exists ({layers(EIGHT, 7)})",
    f"select s from t order by ({layers(EIGHT, 7)})",
    f"from ({layers('repeat(s, 2000)', 1)}) pivot (max(repeat(s, 2000)) for a in (1, 2))",
    f"select max(x) from (select (select max(s) from ({layers(EIGHT, 7)})) as x)",
    "select list_transform(split(s, ''), lambda x: s) from t",
    "select list_transform(split(s, ''), lambda x: length(repeat(s, 1000))) from t",
    f"select {'list_transform(' * 12}l{', lambda x: [x, x, x])' * 12} from t",
    "select array_to_string(split(s, ''), repeat('x', 100000)) from t",
    "select null::int[100000][100000] from t",
    "with recursive r(s) as (select 'x' union all select repeat(s, 1000) from r) from r",
    "select levenshtein(s, s) from t",
    "select levenshtein(left(s, -1), left(s, -2)) from t",
    "select levenshtein(repeat(s, 9), substr(s, 5)) from t",
    "select s.repeat(2000000000) from t",
    "select json_pretty(s) from t",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_query_passes(text: str) -> None:
    check(parse(text), text, table="t")


@pytest.mark.parametrize("text", LARGE)
def test_what_makes_much_of_a_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="refused"):
        check(parse(text), text, table="t")
