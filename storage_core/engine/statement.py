"""The check of SQL from outside: which statements and functions may run.

**Statements.** A text runs only if it is one SELECT and all its parts are known. DuckDB's own parser returns the tree.
This module must know everything in the tree: the kinds of queries, tables and expressions, every field of every node,
every function and type. So this module refuses language features that a newer DuckDB adds. This module also refuses
statements that the parser accepts inside a SELECT, such as `with x as (copy … to …)`. A text that is too long or nested
too deeply never reaches the parser. The parser's time grows faster than the nesting.

**Functions.** A query may call only functions that read their arguments and nothing else. A function that is not listed
is refused. A function of a newer DuckDB therefore stays refused until a developer reviews it.
`tests/unit/test_sql_functions.py` fails when DuckDB's own list of functions has changed. These functions are not
listed:

- functions that read files, settings, variables, the catalog or other queries
- functions that plan or execute a query given as text
- functions that sleep, log or count
- functions that take the internal form of an aggregate or a sort key, because DuckDB does not check this form
- all functions of VARIANT, because its cast from deep JSON ends the process
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from storage_core.base.errors import InvalidInput
from storage_core.base.text import did_you_mean, names_of, quoted, shortened
from storage_core.engine.faults import syntax_fault, unknown_function
from storage_core.engine.session import session

if TYPE_CHECKING:
    import duckdb


def words(text: str) -> frozenset[str]:
    """Return the words as a set."""
    return frozenset(text.split())


OPERATORS = words("""
    != !__postfix !~~ !~~* % & && * ** + - ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ __between | || ~ ~~ ~~*
    ~~~
""")
"""Scalar functions that are written as operators."""

SCALARS = words("""
    abs acos acosh add age aggregate alias apply array_aggr array_aggregate array_apply array_cat array_concat
    array_contains array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
    array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any
    array_indexof array_inner_product array_intersect array_length array_negative_dot_product
    array_negative_inner_product array_position array_reduce array_resize array_reverse_sort array_select
    array_slice array_sort array_to_json array_transform array_unique array_value array_where array_zip ascii asin
    asinh atan atan2 atanh bar base64 bin binom bit_count bit_length bit_position bitstring cardinality cbrt ceil
    ceiling century char_length character_length chr concat concat_ws contains cos cosh cot current_date
    current_localtime current_localtimestamp damerau_levenshtein date_diff date_part date_sub date_trunc datediff
    datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear decade decimal_division decode degrees
    divide editdist3 element_at encode ends_with enum_code enum_first enum_last enum_range enum_range_boundary
    epoch epoch_ms epoch_ns epoch_us equi_width_bins era error even exp factorial filter flatten floor format
    formatReadableDecimalSize formatReadableSize format_bytes from_base64 from_binary from_hex from_json
    from_json_strict gamma gcd gen_random_uuid generate_series get_bit get_current_time get_current_timestamp
    grade_up greatest greatest_common_divisor hamming hash hex hour ilike_escape instr isfinite isinf isnan isodow
    isoyear jaccard jaro_similarity jaro_winkler_similarity json_array json_array_length json_contains
    json_deep_merge json_exists json_extract json_extract_path json_extract_path_text json_extract_string
    json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize json_object json_pretty json_quote
    json_remove json_replace json_set json_strip_nulls json_structure json_transform json_transform_strict
    json_type json_valid json_value julian last_day lcase lcm least least_common_multiple left left_grapheme len
    length length_grapheme levenshtein lgamma like_escape list_aggr list_aggregate list_apply list_cat list_concat
    list_contains list_cosine_distance list_cosine_similarity list_distance list_distinct list_dot_product
    list_element list_extract list_filter list_grade_up list_has list_has_all list_has_any list_indexof
    list_inner_product list_intersect list_negative_dot_product list_negative_inner_product list_pack
    list_position list_reduce list_resize list_reverse_sort list_select list_slice list_sort list_transform
    list_unique list_value list_where list_zip ln log log10 log2 lower lpad ltrim make_date make_time
    make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz map map_concat map_contains map_entries
    map_extract map_extract_value map_from_entries map_keys map_values md5 md5_number microsecond millennium
    millisecond minute mismatches mod month monthname multiply nanosecond nextafter nfc_normalize
    normalized_interval not_ilike_escape not_like_escape now octet_length ord overlay parse_dirname parse_dirpath
    parse_filename parse_formatted_bytes parse_path pi position pow power prefix printf quarter radians random
    range regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
    regexp_split_to_array repeat replace reverse right right_grapheme round round_even roundbankers row
    row_to_json rpad rtrim second set_bit sha1 sha256 sign signbit sin sinh split sqrt starts_with str_split
    str_split_regex strftime string_split string_split_regex string_to_array strip_accents strlen strpos strptime
    struct_concat struct_contains struct_extract struct_extract_at struct_has struct_indexof struct_insert
    struct_keys struct_pack struct_position struct_update struct_values substr substring substring_grapheme
    subtract suffix tan tanh time_bucket timezone timezone_hour timezone_minute to_base to_base64 to_binary
    to_centuries to_days to_decades to_hex to_hours to_json to_microseconds to_millennia to_milliseconds
    to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp
    translate trim trunc try_strptime typeof ucase unbin unhex unicode union_extract union_tag union_value
    unpivot_list upper url_decode url_encode uuid uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7
    week weekday weekofyear xor year yearweek
""")
"""Scalar functions."""

AGGREGATES = words("""
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last
    arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg
    bool_and bool_or corr count count_if count_star countif covar_pop covar_samp decimal_average entropy favg
    first fsum group_concat histogram histogram_exact kahan_sum kurtosis kurtosis_pop last list listagg lttb mad
    max max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev
    stddev_pop stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance
""")
"""Aggregates."""

WINDOWS = words("""
    cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense
    row_number
""")
"""Functions over a window."""

MACROS = words("""
    ago array_append array_pop_back array_pop_front array_prepend array_push_back array_push_front array_reverse
    array_to_string array_to_string_comma_default assert_true date_add days_in_month fdiv fmod generate_subscripts
    geomean geometric_mean if json json_group_array json_group_object json_group_structure list_any_value
    list_append list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and
    list_bool_or list_count list_entropy list_first list_histogram list_kurtosis list_kurtosis_pop list_last
    list_mad list_max list_median list_min list_mode list_prepend list_product list_reverse list_sem list_skewness
    list_stddev_pop list_stddev_samp list_string_agg list_sum list_var_pop list_var_samp map_contains_entry
    map_contains_value md5_number_lower md5_number_upper nullif regexp_split_to_table split_part wavg weighted_avg
""")
"""Macros of DuckDB. The definition of each macro calls the functions above."""

COPYING = words("""
    array_pop_back array_to_string array_to_string_comma_default fmod json_group_array json_group_object
    map_contains_entry nullif split_part weighted_avg
""")
"""Macros that use an argument more than once.

Each level of nesting doubles the number of expressions that DuckDB has to bind.
"""

TABLE_FUNCTIONS = words("""
    generate_series json_each json_tree range repeat unnest
""")
"""Functions that return rows."""

NAMED = OPERATORS | SCALARS | AGGREGATES | WINDOWS | MACROS | {"unnest"}
"""The functions that an expression may call."""

TYPES = words("""
    ARRAY BIGINT BIGNUM BINARY BIT BITSTRING BLOB BOOL BOOLEAN BPCHAR BYTEA CHAR DATE DATETIME DEC DECIMAL DOUBLE
    ENUM FLOAT FLOAT4 FLOAT8 GUID HUGEINT INT INT1 INT128 INT16 INT2 INT32 INT4 INT64 INT8 INTEGER INTEGRAL
    INTERVAL JSON LIST LOGICAL LONG MAP NULL NUMERIC NVARCHAR OID REAL ROW SHORT SIGNED SMALLINT STRING STRUCT
    TEXT TIME TIMESTAMP TIMESTAMPTZ TIMESTAMPTZ_NS TIMESTAMP_MS TIMESTAMP_NS TIMESTAMP_S TIMESTAMP_US TIMETZ
    TIME_NS TINYINT TUPLE UBIGINT UHUGEINT UINT128 UINT16 UINT32 UINT64 UINT8 UINTEGER UNION USMALLINT UTINYINT
    UUID VARBINARY VARCHAR VARINT
""") | {"TIME WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE"}
"""The valid target types of a cast."""

NESTED_TYPES = words("""
    ARRAY ENUM JSON LIST MAP ROW STRUCT TUPLE UNION
""")
"""Types that contain other values. The text of a nested value also contains quotes around the inner texts, so the text
is longer than the value.
"""

OF_ONE_ROW = words("""
    != !~~ !~~* % & && * ** + - ->> / // < << <= = > >= >> ^ ^@ __between abs acos acosh add ascii asin asinh
    atan atan2 atanh base64 bin bit_count bit_length cbrt ceil ceiling century char_length character_length chr
    concat concat_ws contains cos cosh cot date_add date_diff date_part date_sub date_trunc
    datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear decade decimal_division degrees
    divide ends_with epoch epoch_ms epoch_ns epoch_us era even exp factorial floor format from_base64
    from_binary from_hex gamma gcd greatest greatest_common_divisor hamming hex hour if ilike_escape instr
    isfinite isinf isnan isodow isoyear jaccard json_extract_string
    json_value julian last_day lcase lcm least least_common_multiple left left_grapheme len length length_grapheme
    lgamma like_escape ln log log10 log2 lower lpad ltrim make_date make_time make_timestamp
    make_timestamp_ms make_timestamp_ns md5 md5_number microsecond millennium millisecond minute mismatches mod
    month monthname multiply nanosecond nextafter nfc_normalize not_ilike_escape not_like_escape nullif
    octet_length ord overlay pi position pow power prefix printf quarter radians regexp_escape regexp_extract
    regexp_full_match regexp_matches regexp_replace repeat replace reverse right right_grapheme round round_even
    roundbankers rpad rtrim second sha1 sha256 sign signbit sin sinh split_part sqrt starts_with str_split
    strftime string_split strip_accents strlen strpos strptime substr substring substring_grapheme subtract suffix
    tan tanh time_bucket to_base to_base64 to_binary to_centuries to_days to_decades to_hex to_hours
    to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_weeks to_years
    translate trim trunc try_strptime ucase unbin unhex unicode upper url_decode url_encode week weekday
    weekofyear xor year yearweek | || ~ ~~ ~~* ~~~
""")
"""Functions that always return the same value for a row. The query text limits how long the results can be."""


# The tree of DuckDB's parser for a text, and the error for a refused text.

Node = Mapping[str, Any]
_NESTED = (dict, list)  # the types of nested JSON values
_SCHEMAS = (["main"], ["system", "main"])
"""The schemas in which DuckDB searches for a function before it searches for a column with the same name."""


def nodes_of(tree: Any) -> Iterator[Node]:
    """Yield every record of the tree, at any depth, parents first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(each for each in node.values() if each.__class__ in _NESTED)
        else:
            waiting.extend(each for each in node if each.__class__ in _NESTED)


def called_on(call: Node) -> list[str]:
    """Return the qualifying names that precede the function name in a call.

    For example, the parser treats the column in `s.repeat(3)` as a schema.
    """
    before = [str(each) for each in call["qualified_name"]["path"][:-1]]
    return [] if before in _SCHEMAS else before


def arguments(call: Node) -> list[Node]:
    """Return the arguments of a call. If the call is a method of a column, the column is the first argument."""
    given: list[Node] = [each["expression"] for each in call["arguments"]]
    before = called_on(call)
    return [{"class": "COLUMN_REF", "column_names": before}, *given] if before else given


def refused(text: str, what: str, why: str) -> InvalidInput:
    """Return the error for a text that is refused."""
    return InvalidInput(f"the {what} {shown(text)} is refused: {why}", query=text)


def shown(text: str) -> str:
    """Return the text in the form that errors contain."""
    return quoted(text, 500)


TABLE = "t"
"""The name of the queried table in a query."""
LONGEST_TEXT = 200_000
MOST_WORDS = 20_000
"""The maximum number of words, numbers and signs in a text, sufficient for a list of about 10,000 constants."""
MOST_NESTED = 100
"""The maximum nesting of brackets and of operators. A flat list of conditions is one level."""
MOST_PARTS = 1_000
"""The maximum number of SELECTs and tables. Each use is counted.

DuckDB's planning time grows faster than linearly.
"""
MOST_JOINS = 100
MOST_NAMES = 32
"""The maximum number of names in a reference to a column or a field of a column, such as `a.b.c`.

DuckDB's planning time grows faster than linearly with the number of names, as it does with joins. With this limit, a
query that would use up its time is refused immediately.
"""
MOST_COPIES = 8
"""The maximum nesting of the macros in `COPYING`."""

_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"})
_TABLES = frozenset(
    {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION"}
)
_PARTS = frozenset({"BASE_TABLE", "SELECT_NODE", "TABLE_FUNCTION"})
_MODIFIERS = frozenset({"DISTINCT_MODIFIER", "LIMIT_MODIFIER", "ORDER_MODIFIER"})
_ORDERS = frozenset({"ASCENDING", "DESCENDING", "ORDER_DEFAULT"})
_KINDS = _QUERIES | _TABLES | _MODIFIERS | _ORDERS
_CLASSES = words("""
    BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR
    POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW
""")
_FIELDS = words("""
    aggregate_handling aggregates alias aliases arg_orders arguments at_clause case_checks catalog catalog_name
    child children class collation column column_name_alias column_names columns comparison_type condition cte_map
    cte_name default_expr delim_flipped distinct distinct_on_targets duplicate_eliminated_columns else_expr end
    end_expr entries exclude_clause exclude_list expected_names expected_types export_state expr expression filter
    filter_expr from_table function function_name group_expressions group_sets groups has_ignore_nulls having id
    ignore_nulls include_nulls index input is_implicit is_null is_operator is_percentage join_type key key_targets
    kind left lhs limit limit_type literal lower map materialized method modifiers name named_param_map
    nearest_approx nearest_count nearest_order_type node null_order offset offset_expr order_bys orders partitions
    path payload_aggregates pivot_enum pivot_expressions pivots qualified_exclude_list qualified_name qualify
    query query_location query_location_length query_node ranking_expression ref_type relation_name rename_list
    repeatable replace_list right sample sample_rate sample_size schema schema_name seed select_list setop_all
    setop_type show_type source star_expr start start_expr subquery subquery_type syntax_type table table_name
    text then_expr try_cast type type_expr type_info type_name union_all unpivot_names upper using_columns value
    values when_expr where_clause with_ordinality
""")
_EXAMPLE = "Write a condition such as status >= 500"
_PARSER_TOO_DEEP = "Max expression depth"
_PARSER_NO_SELECT = "Only SELECT statements"
_PLAIN_NAME = re.compile(r"[\w $-]+")
_DUCKDBS_OWN = re.compile(r"duckdb|pragma|pg_|sqlite_|information_schema|tidemark", re.IGNORECASE)


def parse(text: object, what: str = "query", *, given: str | None = None) -> Node:
    """Return DuckDB's tree of one SELECT statement.

    Raises `InvalidInput` for other statements and for texts that are too long.

    The tree is not checked yet. The depth of the tree is limited, so a recursive function can read the tree.

    Args:
        text: The statement.
        what: A description of the statement, for errors.
        given: The text for quotes in errors, if the caller has made `text` from another text.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"the {what} is {text!r}. Give a text", query=text)
    if not (text if given is None else given).strip():
        raise InvalidInput(f"the {what} is empty. {'Write a SELECT' if what == 'query' else _EXAMPLE}", query=text)
    _check_size(text, what)
    row = parser().execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    try:
        tree: dict[str, Any] = json.loads(row[0] if row else '{"error": true, "error_message": "no answer"}')
    except RecursionError:
        raise _too_deep(text, what) from None
    if tree["error"]:
        if _PARSER_TOO_DEEP in tree["error_message"]:
            raise _too_deep(text, what)
        quoted_text = shown(text if given is None else given)
        if _PARSER_NO_SELECT in tree["error_message"]:
            raise _several(what, quoted_text, text)
        where = syntax_fault(tree["error_message"], given)
        advice = "Correct it there" if where else "Correct it"
        if what == "condition":
            advice = _EXAMPLE
        raise InvalidInput(f"the {what} {quoted_text} is not valid SQL{where}. {advice}", query=text)
    statements = tree["statements"]
    if len(statements) != 1:
        raise _several(what, shown(text if given is None else given), text)
    node: Node = statements[0]["node"]
    return node


def _several(what: str, found: str, text: str) -> InvalidInput:
    """Return the error for several statements in one text, or for a statement that is not a SELECT."""
    if what == "query":
        form = "one SELECT statement"
        advice = "To change rows, use append, upsert, update, overwrite or delete"
    else:
        form, advice = "one expression over the columns", "Write the expression without ; and without other statements"
    return InvalidInput(f"the {what} {found} is not {form}. {advice}", query=text)


def text_of(expression: Node) -> str:
    """Return the SQL text of an expression of a tree, in the form that DuckDB writes."""
    begin = "SELECT "
    node = {**parse(f"{begin}1"), "select_list": [{**expression, "alias": ""}]}
    tree = json.dumps({"error": False, "statements": [{"node": node, "named_param_map": []}]})
    row = parser().execute("SELECT json_deserialize_sql(?::JSON)", [tree]).fetchone()
    return str(row[0] if row else "").removeprefix(begin)


def parser() -> duckdb.DuckDBPyConnection:
    """Return a cursor of this process's restricted DuckDB session, which parses SQL and lists DuckDB's functions."""
    return _parser(os.getpid()).cursor()


def check(tree: Node, text: str, *, tables: Collection[str], what: str = "query", given: str | None = None) -> None:
    """Raise `InvalidInput` unless every part of the syntax tree is known and the query reads only valid tables.

    The valid tables are `tables` and the query's own common tables. Errors quote `given` in place of `text`, like the
    errors of `parse`.
    """
    text = text if given is None else given
    nodes = list(nodes_of(tree))
    parts = sum(str(node.get("type")) in _PARTS for node in nodes)
    if parts > MOST_PARTS:
        advice = "Divide it into several queries, or use one condition for several values"
        raise refused(text, what, f"the {what} has {parts} SELECTs and tables. The limit is {MOST_PARTS}. {advice}")
    joins = sum(node.get("type") == "JOIN" for node in nodes)
    if joins > MOST_JOINS:
        raise refused(text, what, f"the {what} has {joins} joins. The limit is {MOST_JOINS}")
    named = {str(node["key"]).lower() for node in nodes if _is_common_table(node.get("value"))}
    for name in named:
        if not is_table_name(name):
            raise refused(text, what, f"{name} cannot be the name of a common table")
    for node in nodes:
        why = _objection(node, named, tables, text)
        if why is not None:
            raise refused(text, what, why)
    check_copies(tree, text, what)


def check_copies(tree: Any, text: str, what: str) -> None:
    """Raise `InvalidInput` if macros that copy their arguments are nested too deeply."""
    waiting = [(tree, 0)]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, dict):
            around += str(node.get("function_name")).lower() in COPYING
            if around > MOST_COPIES:
                names = ", ".join(sorted(COPYING))
                raise refused(text, what, f"at most {MOST_COPIES} of these functions may be nested: {names}")
            waiting.extend((each, around) for each in node.values())
        elif isinstance(node, list):
            waiting.extend((each, around) for each in node)


def is_table_name(name: str) -> bool:
    """Return whether a table of a query may have this name.

    The name must be a plain name and not one of DuckDB's own names.
    """
    return bool(_PLAIN_NAME.fullmatch(name)) and not _DUCKDBS_OWN.match(name)


def _is_common_table(value: object) -> bool:
    return isinstance(value, Mapping) and "query_node" in value


def _objection(node: Node, common: set[str], tables: Collection[str], text: str) -> str | None:
    """Return the reason why a query may not contain this record, or None if a query may contain it.

    Raises `InvalidInput` for an unknown table and for a parameter without a value.
    """
    if node.get("class") == "PARAMETER":
        raise _parameter_without_value(text, [str(node["identifier"])])
    unknown = node.keys() - _FIELDS
    if unknown:
        return _part(min(unknown))
    kind, class_ = node.get("type"), node.get("class")
    if class_ is not None:
        return _expression_objection(node, str(class_), text)
    if not isinstance(kind, str):
        return None
    if kind not in _KINDS:
        return _part(kind)
    match kind:
        case "BASE_TABLE":
            path = [str(each).lower() for each in node["qualified_name"]["path"]]
            if len(path) != 1 or path[0] not in {*common, *tables} or node["at_clause"] is not None:
                name = ".".join(map(str, node["qualified_name"]["path"]))
                raise unknown_table(name, tables, text)
        case "TABLE_FUNCTION":
            name = str(node["function"]["function_name"]).lower()
            if name in TABLE_FUNCTIONS:
                return None
            _require_function(name, text)
            return f"the table function {name} is not allowed. {_reading(tables)}"
        case "SHOW_REF":
            return "DESCRIBE works only for queries. Write DESCRIBE SELECT …" if node["query"] is None else None
        case "PIVOT":
            is_open = node["pivots"] and _from_type(node)
            return "the values of a pivot must be written out. Write IN (…)" if is_open else None
    return None


def unknown_table(name: str, tables: Collection[str], text: str) -> InvalidInput:
    """Return the error for a table that a query cannot read."""
    noun = "table" if len(tables) == 1 else "tables"
    return InvalidInput(
        f"unknown table {quoted(name)}. A query can read only the {noun} {', '.join(tables)}", query=text, table=name
    )


def _parameter_without_value(text: str, names: Sequence[str]) -> InvalidInput:
    noun = "a value for the parameter" if len(names) == 1 else "values for the parameters"
    advice = (
        f"Pass {'it' if len(names) == 1 else 'them'} in `parameters`, or write {'it' if len(names) == 1 else 'them'}"
    )
    return InvalidInput(
        f"the query {shown(text)} needs {noun} {names_of(sorted(names))}. {advice} into the query", query=text
    )


def _reading(tables: Collection[str]) -> str:
    if len(tables) == 1:
        return f"In a query, the table has the name {', '.join(tables)}. No other table can be read"
    return f"A query can read the tables {', '.join(tables)}, and no other"


def _from_type(pivot: Node) -> bool:
    return any(each.get("pivot_enum") or each.get("subquery") for each in pivot["pivots"])


def _part(name: str) -> str:
    """Return the reason why an unknown part of SQL is refused. `name` is the name that DuckDB's parser uses for the
    unknown part of SQL.
    """
    return (
        f"the text contains a part of SQL that is not allowed ({name.lower().replace('_', ' ')}). Leave this part out"
    )


def _expression_objection(node: Node, class_: str, text: str) -> str | None:
    if class_ not in _CLASSES:
        return _part(class_)
    if "function_name" in node:
        name = str(node["function_name"]).lower()
        if name not in _CALLED or node.get("export_state"):
            _require_function(name, text)
            return f"the function {name} is not allowed. Use functions that only compute a value from their arguments"
    if len(node.get("column_names") or ()) > MOST_NAMES:
        return f"the name of a column has more than {MOST_NAMES} parts with dots between them"
    if class_ == "TYPE" and str(node["type_name"]).upper() not in TYPES:
        name = str(node["type_name"])
        likely = did_you_mean(name, sorted(TYPES)) or ". Use a type such as VARCHAR, BIGINT or TIMESTAMP"
        return f"the type {shortened(name)} is not allowed{likely}"
    return None


_CALLED = frozenset(map(str.lower, NAMED | TABLE_FUNCTIONS))


def _require_function(name: str, text: str) -> None:
    """Raise `InvalidInput` if DuckDB has no function with this name in lower case."""
    if name not in _functions():
        likely = did_you_mean(name, sorted(_CALLED - OPERATORS))
        raise InvalidInput(f"unknown function {quoted(name)}{likely}" if likely else unknown_function(name), query=text)


@functools.cache
def _functions() -> frozenset[str]:
    """Return the names of all functions that DuckDB has, in lower case."""
    found = parser().execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    return frozenset(str(name).lower() for (name,) in found)


def _check_size(text: str, what: str) -> None:
    if len(text) > LONGEST_TEXT:
        advice = "Give the text in parts"
        raise InvalidInput(f"the {what} has {len(text)} characters. The limit is {LONGEST_TEXT}. {advice}", query=None)
    try:
        coded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the {what} contains a character that UTF-8 cannot encode. Write the text in UTF-8", query=text
        ) from error
    import duckdb

    words, depth = duckdb.tokenize(text), 0
    if len(words) > MOST_WORDS:
        advice = "Give the text in parts"
        raise InvalidInput(
            f"the {what} has {len(words)} words and signs. The limit is {MOST_WORDS}. {advice}", query=None
        )
    for offset, kind in words:
        if kind is duckdb.token_type.operator:
            depth += (coded[offset] in b"([{") - (coded[offset] in b")]}")
            if depth > MOST_NESTED:
                raise _too_deep(text, what)


@functools.cache
def _parser(process: int) -> duckdb.DuckDBPyConnection:  # noqa: ARG001  # what a fork leaves of another's is not used
    return session(threads=1, most_nested=MOST_NESTED)


def _too_deep(text: str, what: str) -> InvalidInput:
    return InvalidInput(f"the {what} {shown(text)} is nested more than {MOST_NESTED} deep. Make it flatter", query=text)


# Functions that may return another value when they are evaluated again. The list of these functions comes from DuckDB's
# own list of functions (decision 0013).
#
# The list contains the stability of each function, but not of macros. The definition of a macro contains the functions
# that the macro calls. Some words, such as `current_date`, are functions if no column has this name. DuckDB binds a
# word such as `current_date` without a table.

LISTED_AS_CONSISTENT = frozenset({"current_localtime", "current_localtimestamp"})
"""Functions that DuckDB lists as consistent although they return the time. `_first` also handles `age`."""

_LISTED = """
    SELECT DISTINCT function_name FROM duckdb_functions()
    WHERE stability <> 'CONSISTENT' AND return_type <> '"NULL"' -- what returns nothing, as error does, has no value
"""
_DEFINED = "SELECT function_name, parameters, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"


def require_repeatable(text: str, columns: Collection[str], what: str) -> None:
    """Raise `InvalidInput` unless an expression over a table's columns always has the same value for a row.

    The error contains the function whose value can change. The error also contains `what`, which is the name of the
    text.
    """
    found = _first(parse(f"SELECT {text}", what), {name.lower() for name in columns}, unstable())
    if found is not None:
        raise refused(
            text,
            what,
            f"{found} can change when the text is evaluated again, for example after another writer commits. "
            "Write a constant, as in ts < TIMESTAMP '2026-01-31 12:00:00'. Or use values of the row, as in "
            "hash(id) % 10 = 0",
        )


@functools.cache
def unstable() -> frozenset[str]:
    """Return the lower-case names of functions and macros that may return another value for the same arguments.

    The function `age` with one argument depends on the current date, but the result does not contain `age`.
    """
    listed = parser().execute(_LISTED).fetchall()
    found = LISTED_AS_CONSISTENT | {str(name).lower() for (name,) in listed}
    macros = [
        (str(name), {str(each).lower() for each in parameters}, parse(f"SELECT {definition}"))
        for name, parameters, definition in parser().execute(_DEFINED).fetchall()
        if name in MACROS
    ]
    while new := {name for name, own, tree in macros if name not in found and _first(tree, own, found)}:
        found |= new
    return found


def _first(tree: Node, columns: Collection[str], functions: Collection[str]) -> str | None:
    """Return the first function or word whose value may change with time, or None."""
    for node in nodes_of(tree):
        if "function_name" in node:
            name = str(node["function_name"]).lower()
            if name in functions or (name == "age" and len(arguments(node)) == 1):
                return name
        elif node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = str(node["column_names"][0]).lower()
            if name not in columns and _has_value_without_table(name):
                return name
    return None


@functools.lru_cache(maxsize=256)
def _has_value_without_table(name: str) -> bool:
    """Return whether DuckDB evaluates a bare word without a table, for example `current_date`."""
    import duckdb

    quoted = name.replace('"', '""')
    try:
        parser().execute(f'SELECT "{quoted}"')  # the quotes make the word one identifier
    except duckdb.Error:
        return False
    return True


# Python values as constants of DuckDB, written by DuckDB itself.

_CONSTANTS = "Give a number, a text, a boolean, a date, a time, bytes, None, or a list or mapping of these"
_MOST_BITS = 4096
"""The maximum number of bits of an integer. The time to write an integer grows with the square of its length."""


def constant(value: object, what: str) -> duckdb.Expression:
    """Return the value as an expression. Raises `InvalidInput` with a message that begins with `what`."""
    import duckdb

    with _refused(value, what):
        made = duckdb.ConstantExpression(value)
        if isinstance(value, list | tuple | dict):  # DuckDB converts the members when it writes them
            str(made)
        return made


def literal(value: object, what: str) -> str:
    """Return the value as SQL text. Raises `InvalidInput` with a message that begins with `what`."""
    with _refused(value, what):
        return str(constant(value, what)).encode().decode()  # raises an error for lone surrogates


@contextmanager
def _refused(value: object, what: str) -> Iterator[None]:
    import duckdb

    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise InvalidInput(
            f"{what} an integer of {value.bit_length():,} bits. Give an integer of at most {_MOST_BITS:,} bits"
        )
    try:
        yield
    except InvalidInput:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError, duckdb.Error) as error:
        raise InvalidInput(f"{what} {_described(value)}") from error


def _described(value: object) -> str:
    """Describe a value for which DuckDB has no literal, and advise which values to use instead."""
    match value:
        case int():
            return f"{quoted(value)}. Give an integer of at most 127 bits"
        case str():
            return f"{quoted(value)}. Give text that UTF-8 can encode"
        case list() | tuple() | dict():
            return f"{quoted(value)}, because SQL cannot express one of its values. {_CONSTANTS}"
        case _:
            return f"a value of the type {shortened(type(value).__name__)}. {_CONSTANTS}"


# This section replaces the parameters of a query (`?`, `$1` or `$name`) in the query text with values. The values are
# written as DuckDB literals.
#
# So a query with values becomes an ordinary SELECT, which is checked, pruned and run like any other query.

Parameters = Sequence[object] | Mapping[str, object]


def with_values(text: str, parameters: Parameters) -> str:
    """Return the query with a literal in place of each parameter.

    Args:
        text: The query.
        parameters: A sequence for `?` and `$1`, or a mapping for `$name`. Each parameter must have exactly one value,
            and each value must belong to a parameter.

    Raises:
        InvalidInput: Parameters and values do not match, or DuckDB has no literal for a value.
    """
    values = _by_name(parameters)
    places = {
        int(node["query_location"]): (int(node["query_location_length"]), str(node["identifier"]))
        for node in nodes_of(parse(text))
        if node.get("class") == "PARAMETER"
    }
    named = {name for _, name in places.values()}
    if missing := named - values.keys():
        raise _parameter_without_value(text, [*missing])
    if spare := sorted(values.keys() - named):
        noun = "parameter" if len(spare) == 1 else "parameters"
        advice = f"Leave the value{'' if len(spare) == 1 else 's'} out"
        raise InvalidInput(f"the query {shown(text)} has no {noun} {names_of(spare)}. {advice}", query=text)
    coded = text.encode()
    for place, (length, name) in sorted(places.items(), reverse=True):
        written = f"({literal(values[name], f'parameter {name} cannot be')})"
        coded = coded[:place] + written.encode() + coded[place + length :]
    return coded.decode()


def _by_name(parameters: object) -> dict[str, object]:
    if isinstance(parameters, Mapping):
        return {str(name): value for name, value in parameters.items()}
    if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes):
        return {str(number): value for number, value in enumerate(parameters, 1)}
    raise InvalidInput(f"parameters is {quoted(parameters)}. Give a list of values, or a mapping from names to values")
