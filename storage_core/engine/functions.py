"""The functions that a query may name: those that look at their arguments and at nothing else.

What is not listed is refused, so a function that a newer DuckDB brings waits until somebody has looked at it;
`tests/unit/test_sql_functions.py` fails where the engine's own list has changed. Left out: what reads files, settings,
variables, the catalogue or other queries, what plans or runs text, what sleeps, logs or counts, what takes the inner
form of an aggregate or a sort key, which DuckDB believes unseen, and all of VARIANT, whose cast from deep JSON ends
the process.
"""

from __future__ import annotations


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
"""Macros that are made of the others."""

COPYING = words("""
    array_pop_back array_to_string array_to_string_comma_default fmod json_group_array json_group_object
    map_contains_entry nullif split_part weighted_avg
""")
"""Macros that name an argument more than once: each one around another doubles what DuckDB has to bind."""

TABLE_FUNCTIONS = words("""
    generate_series json_each json_tree range repeat unnest
""")
"""Functions that give rows."""

NAMED = OPERATORS | SCALARS | AGGREGATES | WINDOWS | MACROS | {"unnest"}
"""What an expression may call."""

TYPES = words("""
    ARRAY BIGINT BIGNUM BINARY BIT BITSTRING BLOB BOOL BOOLEAN BPCHAR BYTEA CHAR DATE DATETIME DEC DECIMAL DOUBLE
    ENUM FLOAT FLOAT4 FLOAT8 GUID HUGEINT INT INT1 INT128 INT16 INT2 INT32 INT4 INT64 INT8 INTEGER INTEGRAL
    INTERVAL JSON LIST LOGICAL LONG MAP NULL NUMERIC NVARCHAR OID REAL ROW SHORT SIGNED SMALLINT STRING STRUCT
    TEXT TIME TIMESTAMP TIMESTAMPTZ TIMESTAMPTZ_NS TIMESTAMP_MS TIMESTAMP_NS TIMESTAMP_S TIMESTAMP_US TIMETZ
    TIME_NS TINYINT TUPLE UBIGINT UHUGEINT UINT128 UINT16 UINT32 UINT64 UINT8 UINTEGER UNION USMALLINT UTINYINT
    UUID VARBINARY VARCHAR VARINT
""") | {"TIME WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE"}
"""What a value may be cast to."""

NESTED_TYPES = words("""
    ARRAY ENUM JSON LIST MAP ROW STRUCT TUPLE UNION
""")
"""Types that hold others. As text they are longer than what they hold, by as much as they quote."""

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
"""Functions that give a row the same value on every call, of a length that can be told from the text."""
