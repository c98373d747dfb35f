"""Runs the compactor: ``python -m anabranch_compactor``, or ``spark-submit`` of this file.

Settings come from the environment. Standard output has one JSON object a line: steps as they come, and of each
database the outcome.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from anabranch.clock import Clock
from anabranch.runtime import telemetry
from anabranch.runtime.config import SettingsError, load_settings
from anabranch.runtime.logs import configure_logs
from anabranch.store.catalog.databases import UnknownDatabaseError, schema_versions
from anabranch.store.lake.compactions import NotPublishedError
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import connect
from anabranch.store.session.told import told
from anabranch_compactor.altered import AlteredWhileReadError
from anabranch_compactor.compact import Options, compact
from anabranch_compactor.config import CompactorSettings
from anabranch_compactor.files.lake_files import RootError
from anabranch_compactor.files.moved import LakeMovedError
from anabranch_compactor.plan import PlanError
from anabranch_compactor.prove import ProofError
from anabranch_compactor.spark import failure
from anabranch_compactor.spark.java import JavaError
from anabranch_compactor.spark.progress import watched
from anabranch_compactor.spark.session import lake_root, spark_session, submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sessions = Callable[..., AbstractContextManager["SparkSession"]]
"""Gives a session; takes what ``spark_session`` takes."""
FAILED, REFUSED = 1, 2
REASONS: dict[type[Exception], str] = {
    SettingsError: "INVALID_SETTINGS",
    JavaError: "NO_JAVA",
    UnknownDatabaseError: "UNKNOWN_DATABASE",
    PlanError: "LOG_CUT",
    RootError: "NO_ROOT",
    LakeMovedError: "LAKE_MOVED",
    ProofError: "PROOF_FAILED",
    AlteredWhileReadError: "ALTERED_WHILE_READ",
    NotPublishedError: "NOT_PUBLISHED",
}


def say(**event: Any) -> None:
    """Print one event."""
    print(json.dumps(event), flush=True)


def run(sessions: Sessions) -> bool:
    """Compact every database that the settings name; gives whether all of them could be."""
    settings = load_settings(CompactorSettings)
    configure_logs("compactor", settings.log_level)
    url = settings.postgres_url.get_secret_value()
    close = telemetry.start("compactor", settings)
    try:
        with connect(url, application_name="anabranch-compactor", autocommit=True) as conn:
            names = [settings.compact_database] if settings.compact_database else sorted(schema_versions(conn))
        say(step="begun")
        with ExitStack() as ending:

            @cache
            def spark() -> SparkSession:
                session = ending.enter_context(
                    sessions(settings.spark_master, driver_memory_mib=settings.spark_driver_memory_mib)
                )
                ending.enter_context(watched(session, say))
                say(step="started")
                return session

            if submitted():
                # spark-submit waits for the job's session, whether the job has work or not.
                spark()
            options = Options(
                url,
                lake_root(settings.lake_root),
                Clock(settings.clock_offset_ms, settings.clock_file),
                settings.orphan_grace_ms,
                say,
            )
            failed = False
            for name in names:
                try:
                    outcome = compact(spark, name, options)
                except (PlanError, LakeMovedError, ProofError, AlteredWhileReadError, NotPublishedError) as error:
                    # It is one database's: the others have theirs compacted.
                    _print_failure(error)
                    failed = True
                else:
                    say(step="outcome", database=name, **outcome.as_json())
            return not failed
    finally:
        close()


def _print_failure(error: Exception) -> None:
    print(f"anabranch: {' '.join(str(error).split())} ({REASONS[type(error)]})", file=sys.stderr)


def main(sessions: Sessions = spark_session) -> int:
    """Run the job. Exit code 2 for a failure that a person can correct, with one line for each database that names it;
    1 for any other failure, with one line where it is Spark's."""
    try:
        return 0 if run(sessions) else REFUSED
    except tuple(REASONS) as error:
        _print_failure(error)
        return REFUSED
    except Exception as error:
        if is_unavailable(error):
            print(f"anabranch: Postgres is not available: {told(error)} (UNAVAILABLE)", file=sys.stderr)
            return REFUSED
        sentence = failure.sentence(error)
        if sentence is None:
            raise
        print(f"anabranch: {sentence} (SPARK_FAILED)", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
