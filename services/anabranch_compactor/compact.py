"""The verb: one run.

States of a run, in order; a run that ends in any of them before *published* has changed nothing that anybody reads:

1. *planned*: the stretch, the sums to prove it by, and the manifest to go on from, as of one moment.
2. *written*: files under the run's own id. No other run writes there.
3. *proven*: the files were read again, and their sums are those of the log and of the tables.
4. *published*: one row in ``anabranch.compactions``. Of two runs over one stretch one gets there.
5. *told*: the manifest is put beside the files, for readers without Postgres. A run that dies before is told by the
   next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import SparkSession
from ulid import ULID

from anabranch import faults
from anabranch.clock import Clock
from anabranch.columnar.file_columns import FileTable
from anabranch.columnar.manifest import Manifest, TableFiles, manifest_path, to_json
from anabranch.columnar.proof import Sum
from anabranch.runtime import metrics
from anabranch.runtime.telemetry import span
from anabranch.store import compactions as store
from anabranch.store.engine import connect
from anabranch_compactor import table_base, table_changes, table_conflicts
from anabranch_compactor.hadoop_files import HadoopFiles
from anabranch_compactor.log_source import LogSource
from anabranch_compactor.orphans import needed, remove_orphans
from anabranch_compactor.plan import Plan, TablePlan, planned
from anabranch_compactor.prove import require
from anabranch_compactor.run import Run, lake_folder, parts

Say = Callable[..., None]
"""Takes an event: ``step`` and what belongs to it."""
DAY_MS = 86_400_000


def _nothing(**_event: Any) -> None:
    """For whoever does not listen."""


@dataclass(frozen=True, slots=True)
class Options:
    """``root``: a path of Hadoop's. ``orphan_grace_ms``: see ``orphans``."""

    url: str
    root: str
    clock: Clock
    orphan_grace_ms: int = DAY_MS
    say: Say = _nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did. ``run_id`` is None where there was nothing to do. ``rows``, ``bytes`` and ``files`` are what it
    wrote and published. ``without_base``: tables whose first base waits for the next run, because too many changes past
    the services are in no group yet. ``removed``: files that nobody needed any more."""

    run_id: str | None
    from_position: int
    to_position: int
    changes: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    without_base: tuple[str, ...] = ()
    removed: int = 0

    def as_json(self) -> dict[str, Any]:
        """For an event."""
        return asdict(self)


def compact(spark: SparkSession, db_name: str, options: Options) -> Outcome:
    """Compact what the log of a database has since the last published run.

    Raises:
        UnknownDatabaseError: there is no such database.
        PlanError: the log can't be compacted as it is.
        ProofError: what was written is not what the log says.
        NotPublishedError: another run was published meanwhile.
    """
    spark.dataSource.register(LogSource)
    with span("compact") as whole:
        with planned(options.url, db_name) as plan:
            whole.set_attribute("anabranch.database", db_name)
            options.say(step="planned", database=db_name, changes=plan.changes, tables=len(plan.tables))
            files = HadoopFiles(spark, lake_folder(options.root, plan))
            if plan.last is not None:
                files.put(manifest_path(plan.last.run_id), _text(plan.last))
            if plan.idle:
                outcome = Outcome(None, plan.after, plan.upto)
            else:
                size = sum(table.log.bytes for table in plan.tables.values() if table.log is not None)
                spark.conf.set("spark.sql.shuffle.partitions", max(spark.sparkContext.defaultParallelism, parts(size)))
                run_id = str(ULID.from_timestamp(options.clock.now_ms() / 1000))
                run = Run(spark, options.url, run_id, options.root, plan, files)
                manifest = _written(run, options.say)
        if not plan.idle:
            _publish(run, manifest, options)
            outcome = _outcome(plan, manifest)
        removed = _clean(files, plan, options)
    _count(plan, outcome, options)
    return replace(outcome, removed=removed)


def _written(run: Run, say: Say) -> Manifest:
    """Everything written and proven."""
    tables = {}
    for name, table in run.plan.tables.items():
        with span("compact table") as one:
            one.set_attribute("anabranch.table", name)
            tables[name] = _table(run, name, table)
        say(step="table", table=name)
    last = run.plan.last
    gone = {} if last is None else {n: t for n, t in last.tables.items() if n not in tables}
    return _manifest(run, {**gone, **tables})


def _publish(run: Run, manifest: Manifest, options: Options) -> None:
    plan = run.plan
    faults.reach("before_publish")
    with span("publish"), connect(options.url, application_name="anabranch-compactor", autocommit=True) as conn:
        store.publish(
            conn,
            plan.database.id,
            run_id=run.run_id,
            epoch=plan.database.epoch,
            after=plan.after,
            upto=plan.upto,
            changes=plan.changes,
            root=run.root,
            manifest=to_json(manifest),
            now_ms=options.clock.now_ms(),
        )
    faults.reach("after_publish")
    run.files.put(manifest_path(run.run_id), _text(manifest))


def _clean(files: HadoopFiles, plan: Plan, options: Options) -> int:
    before_ms = options.clock.now_ms() - options.orphan_grace_ms
    with connect(options.url, application_name="anabranch-compactor", autocommit=True) as conn:
        published = store.all_published(conn, plan.database.id)
    return remove_orphans(files, needed(published, plan.database.epoch, before_ms), before_ms)


def _count(plan: Plan, outcome: Outcome, options: Options) -> None:
    name = plan.database.name
    metrics.count("anabranch_compacted_changes", outcome.changes, database=name)
    metrics.count("anabranch_compaction_bytes", outcome.bytes, database=name)
    metrics.count("anabranch_compaction_files", outcome.files, database=name)
    with connect(options.url, application_name="anabranch-compactor", autocommit=True) as conn:
        head = store.read_head(conn, plan.database.id)
    metrics.gauge("anabranch_compaction_lag", max(0, head - outcome.to_position) / 1000, database=name)


def _table(run: Run, name: str, table: TablePlan) -> TableFiles:
    shape, plan = table.shape, run.plan
    number = shape.table.id
    known = None if plan.last is None else plan.last.tables.get(name)
    if known is not None and known.table_id != number:
        # Dropped and made anew: its history goes on, its rows begin anew.
        known = replace(known, base=None)
    files = TableFiles(number, shape.file_table) if known is None else _going_on(known, number, shape.file_table)
    base = files.base
    if table.log is not None:
        written = table_changes.write_changes(run, table, known)
        total = Sum(files.changes_count, int(files.changes_total, 16)) + table.log.effects
        changes = table_changes.merge_changes(run, shape, (*files.changes, *written.files))
        files = replace(files, changes=changes, changes_count=total.count, changes_total=f"{total.total:032x}")
        if base is not None and written.old is not None:
            try:
                base = table_base.add_delta(run, table, base, written.files, written.old)
            finally:
                written.old.unpersist()
            base = table_base.merge_base(run, shape, base)
    if table.conflicts is not None:
        files = replace(files, conflicts=(*files.conflicts, *table_conflicts.write_conflicts(run, table)))
    if table.pages is not None:
        base = table_base.first_base(run, table)
    elif base is not None:
        require(f"the base of {name}", table_base.base_sum(base), table.table_sum)
    return replace(files, base=base)


def _going_on(known: TableFiles, number: int, columns: FileTable) -> TableFiles:
    return replace(known, table_id=number, columns=columns)


def _manifest(run: Run, tables: Mapping[str, TableFiles]) -> Manifest:
    plan = run.plan
    return Manifest(
        run.run_id,
        plan.database.name,
        plan.database.epoch,
        plan.after,
        plan.upto,
        plan.database.schema_version,
        "" if plan.last is None else plan.last.run_id,
        tables,
    )


def _text(manifest: Manifest) -> str:
    return json.dumps(to_json(manifest), indent=1)


def _outcome(plan: Plan, manifest: Manifest) -> Outcome:
    new = [f for t in manifest.tables.values() for f in t.all_files if f"/{manifest.run_id}/" in f.path]
    lacking = tuple(name for name, table in plan.tables.items() if manifest.tables[name].base is None)
    return Outcome(
        manifest.run_id,
        plan.after,
        plan.upto,
        plan.changes,
        sum(f.rows for f in new),
        sum(f.bytes for f in new),
        len(new),
        lacking,
    )
