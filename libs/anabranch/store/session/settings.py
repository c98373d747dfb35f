"""Postgres's settings in every session of ours, whatever a server, a database or a role has been set to.

``ALTER DATABASE … SET`` and ``ALTER ROLE … SET`` reach each session that begins; the options of a session's own start
take precedence. ``FIXED`` is part of the start. ``LATER`` are the settings that some supported release does not know,
or only a superuser may set: the session's first statement corrects them where they are wrong. ``BY_SESSION`` differs
from one of our sessions to the other (``engine.SessionOptions``). ``HARMLESS`` are all others that a session may have
from outside. A test finds each setting of the server in one of these.

The capture triggers run in the application's sessions, with the application's settings. They work with any: they write
the binary form of rows, in UTF8 and by a fixed search path (``capture``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Fixed(NamedTuple):
    """A setting's value in all sessions, and why."""

    value: str
    why: str


_TEXT = "texts of values are those that rows are hashed by"
_ALIVE = "how long a session lives is ours to say"
_MEANING = "a statement means the same everywhere"
_DEFINITIONS = "texts of types and expressions are compared"
_BEGIN = "each transaction says itself when it differs"
_PLAIN = "the texts that an application's own triggers print in our sessions are the same on every server"

FIXED: Mapping[str, Fixed] = MappingProxyType(
    {
        "DateStyle": Fixed("ISO", _TEXT),
        "IntervalStyle": Fixed("postgres", _TEXT),
        "TimeZone": Fixed("UTC", _TEXT),
        "extra_float_digits": Fixed("1", _TEXT),
        "bytea_output": Fixed("hex", _TEXT),
        "xmlbinary": Fixed("base64", _TEXT),
        "xmloption": Fixed("content", "an xml value that is no document is one all the same"),
        "array_nulls": Fixed("on", "NULL in an array's text is NULL"),
        "lc_monetary": Fixed("C", _TEXT),
        "lc_numeric": Fixed("C", _PLAIN),
        "lc_time": Fixed("C", _PLAIN),
        # The temporary schema would otherwise be looked through first.
        "search_path": Fixed("pg_catalog,pg_temp", "names are found where they are said to be"),
        "row_security": Fixed("on", "policies that bind our role are not errors in an application's trigger"),
        "standard_conforming_strings": Fixed("on", _MEANING),
        "backslash_quote": Fixed("safe_encoding", _MEANING),
        "transform_null_equals": Fixed("off", _MEANING),
        "gin_fuzzy_search_limit": Fixed("0", "no index leaves rows out"),
        "quote_all_identifiers": Fixed("off", _DEFINITIONS),
        "check_function_bodies": Fixed("on", "a migration's function is looked through when it is made"),
        "default_table_access_method": Fixed("heap", "our tables and partitions are updated and locked by the row"),
        "default_transaction_isolation": Fixed("read committed", _BEGIN),
        "default_transaction_read_only": Fixed("off", _BEGIN),
        "default_transaction_deferrable": Fixed("off", _BEGIN),
        # A verdict is durable whatever the role's own default is.
        "synchronous_commit": Fixed("on", "a verdict is durable"),
        "idle_session_timeout": Fixed("0", _ALIVE),
        "exit_on_error": Fixed("off", _ALIVE),
        "tcp_user_timeout": Fixed("0", _ALIVE),
        "tcp_keepalives_idle": Fixed("0", _ALIVE),
        "tcp_keepalives_interval": Fixed("0", _ALIVE),
        "tcp_keepalives_count": Fixed("0", _ALIVE),
        "log_parameter_max_length_on_error": Fixed("0", "an error does not tell the values of others"),
        # Our statements are short; compiling them costs more than running them.
        "jit": Fixed("off", "short statements are not compiled"),
    }
)
"""Settings that every supported release has and every role may set."""

LATER: Mapping[str, Fixed] = MappingProxyType(
    {
        "transaction_timeout": Fixed("0", _ALIVE),
        "restrict_nonsystem_relation_kind": Fixed("", "views and foreign tables are not refused"),
        "session_replication_role": Fixed("origin", "the application's triggers and foreign keys work"),
        "zero_damaged_pages": Fixed("off", "a damaged page is an error, not an empty one"),
        "ignore_checksum_failure": Fixed("off", "a damaged page is an error"),
    }
)
"""Settings that are put right after the start, where they are there and wrong."""

BY_SESSION: frozenset[str] = frozenset(
    {
        "application_name",
        "client_encoding",
        "client_connection_check_interval",
        "idle_in_transaction_session_timeout",
        "lock_timeout",
        "statement_timeout",
    }
)
"""Settings that each session is given, with a value of its own."""

HARMLESS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "how a plan is found or run, not what it gives": (
            "constraint_exclusion",
            "cpu_index_tuple_cost",
            "cpu_operator_cost",
            "cpu_tuple_cost",
            "cursor_tuple_fraction",
            "debug_parallel_query",
            "default_statistics_target",
            "effective_cache_size",
            "effective_io_concurrency",
            "enable_async_append",
            "enable_bitmapscan",
            "enable_distinct_reordering",
            "enable_gathermerge",
            "enable_group_by_reordering",
            "enable_hashagg",
            "enable_hashjoin",
            "enable_incremental_sort",
            "enable_indexonlyscan",
            "enable_indexscan",
            "enable_material",
            "enable_memoize",
            "enable_mergejoin",
            "enable_nestloop",
            "enable_parallel_append",
            "enable_parallel_hash",
            "enable_partition_pruning",
            "enable_partitionwise_aggregate",
            "enable_partitionwise_join",
            "enable_presorted_aggregate",
            "enable_self_join_elimination",
            "enable_seqscan",
            "enable_sort",
            "enable_tidscan",
            "force_parallel_mode",
            "from_collapse_limit",
            "geqo",
            "geqo_effort",
            "geqo_generations",
            "geqo_pool_size",
            "geqo_seed",
            "geqo_selection_bias",
            "geqo_threshold",
            "jit_above_cost",
            "jit_debugging_support",
            "jit_dump_bitcode",
            "jit_expressions",
            "jit_inline_above_cost",
            "jit_optimize_above_cost",
            "jit_profiling_support",
            "jit_tuple_deforming",
            "join_collapse_limit",
            "max_parallel_maintenance_workers",
            "max_parallel_workers",
            "max_parallel_workers_per_gather",
            "min_parallel_index_scan_size",
            "min_parallel_table_scan_size",
            "optimize_bounded_sort",
            "parallel_leader_participation",
            "parallel_setup_cost",
            "parallel_tuple_cost",
            "plan_cache_mode",
            "random_page_cost",
            "recursive_worktable_factor",
            "seq_page_cost",
        ),
        "memory and files; where they don't suffice, an error says so": (
            "commit_delay",
            "commit_siblings",
            "backend_flush_after",
            "gin_pending_list_limit",
            "hash_mem_multiplier",
            "io_combine_limit",
            "logical_decoding_work_mem",
            "maintenance_io_concurrency",
            "maintenance_work_mem",
            "max_stack_depth",
            "temp_buffers",
            "temp_file_limit",
            "wal_skip_threshold",
            "work_mem",
        ),
        "where and how rows are kept, not what they are": (
            "allow_in_place_tablespaces",
            "default_tablespace",
            "default_toast_compression",
            "file_copy_method",
            "temp_tablespaces",
            "wal_compression",
            "wal_consistency_checking",
            "wal_init_zero",
            "wal_recycle",
        ),
        "vacuum": (
            "vacuum_buffer_usage_limit",
            "vacuum_cost_delay",
            "vacuum_cost_limit",
            "vacuum_cost_page_dirty",
            "vacuum_cost_page_hit",
            "vacuum_cost_page_miss",
            "vacuum_failsafe_age",
            "vacuum_freeze_min_age",
            "vacuum_freeze_table_age",
            "vacuum_max_eager_freeze_failure_rate",
            "vacuum_multixact_failsafe_age",
            "vacuum_multixact_freeze_min_age",
            "vacuum_multixact_freeze_table_age",
            "vacuum_truncate",
        ),
        "what the server logs and counts": (
            "backtrace_functions",
            "compute_query_id",
            "debug_pretty_print",
            "debug_print_parse",
            "debug_print_plan",
            "debug_print_raw_parse",
            "debug_print_rewritten",
            "log_btree_build_stats",
            "log_connections",
            "log_disconnections",
            "log_duration",
            "log_error_verbosity",
            "log_executor_stats",
            "log_lock_failures",
            "log_lock_waits",
            "log_min_duration_sample",
            "log_min_duration_statement",
            "log_min_error_statement",
            "log_min_messages",
            "log_parameter_max_length",
            "log_parser_stats",
            "log_planner_stats",
            "log_replication_commands",
            "log_statement",
            "log_statement_sample_rate",
            "log_statement_stats",
            "log_temp_files",
            "log_transaction_sample_rate",
            "stats_fetch_consistency",
            "trace_notify",
            "trace_sort",
            "track_activities",
            "track_cost_delay_timing",
            "track_counts",
            "track_functions",
            "track_io_timing",
            "track_wal_io_timing",
            "update_process_title",
        ),
        "what an error or a notice says to people: errors are known by SQLSTATE": (
            "client_min_messages",
            "escape_string_warning",
            "lc_messages",
            "md5_password_warnings",
        ),
        "statements that no session of ours makes": (
            "allow_system_table_mods",
            "createrole_self_grant",
            "event_triggers",
            "icu_validation_level",
            "lo_compat_privileges",
            "password_encryption",
            "scram_iterations",
        ),
        "the application's own code depends on it": (
            "default_text_search_config",
            "timezone_abbreviations",
        ),
        "an order where none is asked for": ("synchronize_seqscans",),
        "code that the server's operator has loaded": (
            "dynamic_library_path",
            "extension_control_path",
            "extension_destdir",
            "local_preload_libraries",
            "session_preload_libraries",
        ),
        "sessions of replication": (
            "debug_logical_replication_streaming",
            "logical_replication_mode",
            "wal_sender_timeout",
        ),
        "a resolver reads it, and waits less": ("deadlock_timeout",),
        "for debugging a server": ("debug_discard_caches", "debug_invalidate_system_caches_always"),
        "neither a database nor a role can have it": ("ignore_system_indexes", "post_auth_delay"),
        "begun anew with each transaction": (
            "transaction_deferrable",
            "transaction_isolation",
            "transaction_read_only",
        ),
    }
)
"""Settings that may come from outside, by the reason why."""

PUT_RIGHT = """
select s.name, pg_catalog.set_config(s.name, s.value, false)
from (values {values}) s(name, value)
where pg_catalog.current_setting(s.name, true) <> s.value
""".format(values=", ".join(f"('{name}', '{fixed.value}')" for name, fixed in LATER.items()))
"""Puts ``LATER`` right; fails with the setting's name where the role may not. Without parameters, for a driver that
takes none."""
