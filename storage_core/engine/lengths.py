"""How long the value of each function is, by the length of its arguments: what `layers` reckons with."""

from __future__ import annotations

from collections.abc import Mapping

from storage_core.engine.functions import words

SHORT = words("""
    !~~ !~~* % * ** + - / // ^@ ~~ ~~* ~~~ abs ascii avg bit_length ceil ceiling char_length character_length contains
    count count_if count_star countif date_diff date_part date_trunc datediff datepart datetrunc day dense_rank
    ends_with epoch epoch_ms epoch_us exp floor hash hour instr len length ln log md5 minute mod month octet_length ord
    percent_rank position pow power prefix quarter random rank regexp_full_match regexp_matches round row_number second
    sha1 sha256 sign sqrt starts_with stddev strlen strpos strptime suffix sum trunc try_strptime typeof unicode var_pop
    var_samp variance week year
""")
TEXT = words("""
    array_to_string chr concat_ws format left lower lpad ltrim printf regexp_extract regexp_replace replace
    reverse right rpad rtrim strftime substr substring substring_grapheme trim translate upper
""")
"""Functions whose value is text already, which stays as it is where others are made text."""
AS_TEXT = 8
"""As text a byte of a list of booleans becomes six, of a BLOB or a JSON text at most six, a bit string eight."""
PER_BYTE = 16
"""What a list takes for each of its elements, of which a text may hold one per byte."""
TIMES: Mapping[str, int] = {
    **dict.fromkeys(
        words("""
        array_to_json json json_array json_deep_merge json_group_array json_group_object json_group_structure
        json_insert json_merge_patch json_merge_patch_diff json_normalize json_object json_quote json_remove
        json_replace json_set json_strip_nulls json_structure json_transform json_transform_strict from_json
        from_json_strict row_to_json to_json
        """),
        AS_TEXT,
    ),
    **dict.fromkeys(
        words("""
        array_value enum_range histogram histogram_exact json_keys list_pack list_value list_zip array_zip map_keys
        parse_path regexp_extract_all regexp_split_to_array regexp_split_to_table row split str_split str_split_regex
        string_split string_split_regex string_to_array struct_keys struct_pack struct_values
        """),
        PER_BYTE,
    ),
    "regexp_escape": 4,
    "strftime": 12,
    "translate": 4,
}
PRODUCTS = words("""
    array_aggr array_aggregate array_to_string from_json from_json_strict json_transform json_transform_strict list_aggr
    list_aggregate list_zip array_zip array_to_string_comma_default
""")
"""Functions that put one argument between, or beside, the parts of another."""
MANY_PATHS = words("json_extract json_extract_path json_extract_path_text json_extract_string json_value -> ->>")
OVER_ELEMENTS = words("""
    apply array_apply array_filter array_transform filter list_apply list_filter list_transform
""")
TEXT_TYPES = words("BPCHAR CHAR JSON NVARCHAR STRING TEXT VARCHAR")
LONG_TYPES = TEXT_TYPES | words("ARRAY BINARY BIT BITSTRING BLOB BYTEA ENUM LIST MAP ROW STRUCT TUPLE UNION VARBINARY")
COMPARED = words("""
    editdist3 jaro_similarity jaro_winkler_similarity levenshtein
""")
"""Functions whose time is the product of two lengths, of which one must be told by the text."""
