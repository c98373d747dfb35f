"""The verb: one run.

States of a run, in order; a run that ends in any of them before *published* has changed nothing that readers see:

1. *planned*: the stretch, the sums to prove it by, and the manifest to go on from, as of one moment.
2. *written*: files under the run's own id. No other run writes there.
3. *proven*: the files were read again, and their sums are those of the log and of the tables.
4. *published*: one row in ``anabranch.compactions``. Of two runs over one stretch one gets there.
5. *announced*: the manifest is put beside the files, for readers without Postgres. If a run dies before, the next
   one puts its manifest there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from pyspark.sql import SparkSession
from ulid import ULID

from anabranch import faults
from anabranch.clock import Clock
from anabranch.columnar.file_columns import BASE, CHANGES, CONFLICTS
from anabranch.columnar.manifest import EarlierBase, FormerTable, Manifest, TableFiles, manifest_path, to_json
from anabranch.columnar.proof import Sum
from anabranch.runtime import metrics
from anabranch.runtime.telemetry import span
from anabranch.store.lake import compactions as store
from anabranch.store.session.engine import connect
from anabranch_compactor.altered import require_unaltered
from anabranch_compactor.base import base_sum, first_base, live_sums, replaced_sums, require_gone, with_delta
from anabranch_compactor.files.lake_files import LakeFiles
from anabranch_compactor.files.moved import require_moved
from anabranch_compactor.files.orphans import named, needed, remove_orphans
from anabranch_compactor.files.written import Parts
from anabranch_compactor.merge import merged
from anabranch_compactor.plan import FormerPlan, Plan, TablePlan, planned
from anabranch_compactor.prove import ProofError, Proven, prove, require, require_positions, total_of
from anabranch_compactor.run import Run, lake_folder
from anabranch_compactor.units import Unit, units_of
from anabranch_compactor.write import write

Say = Callable[..., None]
"""Takes an event: ``step`` and what belongs to it."""
DAY_MS = 86_400_000


def _nothing(**_event: Any) -> None:
    """Ignore the event: for callers that need none."""


@dataclass(frozen=True, slots=True)
class Options:
    """``root``: a path of Hadoop's. ``orphan_grace_ms``: see ``orphans``."""

    url: str
    root: str
    clock: Clock
    orphan_grace_ms: int = DAY_MS
    say: Say = _nothing


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. ``run_id`` is None where there was nothing to do. ``rows``, ``bytes`` and ``files`` count
    what it wrote and published. ``without_base``: tables whose first base waits for the next run, because too many
    changes past the services are in no group yet. ``removed``: the number of unneeded files that were removed."""

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


def compact(spark: Callable[[], SparkSession], db_name: str, options: Options) -> RunOutcome:
    """Compact the log of a database since the last published run. ``spark`` gives the session, and is asked
    only where there is something to write.

    Raises:
        UnknownDatabaseError: there is no such database.
        PlanError: the log can't be compacted as it is.
        RootError: there can be no files below the root.
        LakeMovedError: earlier runs had another root, and their files are not below this one.
        ProofError: the written files are not what the log says.
        AlteredWhileReadError: a type was altered while rows of its table were read.
        NotPublishedError: another run was published meanwhile.
    """
    with span("compact") as whole:
        with planned(options.url, db_name) as plan:
            whole.set_attribute("anabranch.database", db_name)
            options.say(step="planned", database=db_name, changes=plan.changes, tables=len(plan.tables))
            folder = lake_folder(options.root, plan)
            files = LakeFiles(folder)
            files.prepare()
            if plan.last is not None and plan.last_root != options.root:
                require_moved(files, set(named(to_json(plan.last))), lake_folder(plan.last_root, plan), folder)
            if plan.last is not None:
                files.put(manifest_path(plan.last.run_id), _text(plan.last))
            if plan.idle:
                outcome = RunOutcome(None, plan.after, plan.upto)
            else:
                run_id = str(ULID.from_timestamp(options.clock.now_ms() / 1000))
                run = Run(spark(), options.url, run_id, options.root, plan, files)
                manifest = _written(run, options.say)
        if not plan.idle:
            _publish(run, manifest, options)
            outcome = _outcome(plan, manifest)
        removed = _clean(files, plan, options)
    _count(plan, outcome, options)
    return replace(outcome, removed=removed)


def _written(run: Run, say: Say) -> Manifest:
    """Write and prove all files; gives the manifest that names them."""
    plan = run.plan
    units = units_of(plan, run.spark.sparkContext.defaultParallelism)
    parts = write(run, units) if units else Parts()
    say(step="written", files=len(parts.files))
    proven = prove(run, units, parts.files)
    tables = {name: _table(run, name, units, parts, proven) for name in plan.tables}
    say(step="proven", files=len(proven))
    tables = merged(run, {name: table.shape for name, table in plan.tables.items()}, tables)
    last = plan.last
    gone = {} if last is None else {n: t for n, t in last.tables.items() if n not in tables}
    return _manifest(run, _with_former(run, {**gone, **tables}, units, proven))


def _with_former(
    run: Run, tables: Mapping[str, TableFiles], units: Sequence[Unit], proven: Sequence[Proven]
) -> dict[str, TableFiles]:
    """The files of tables, with those that the run has written for registrations that have ended.

    Raises:
        ProofError: it is not what the log says.
    """
    done, plan = dict(tables), run.plan
    followed = set(plan.tables)
    for former in plan.former:
        name = former.shape.table.name
        written = _history(f"{name} as it was", former, units, proven)
        require_positions(f"the history of {name}", chain(*written.values()), plan.after + 1, former.last_position)
        # Where no other registration has followed, the published files have a base that no run updates any more.
        before = done[name] if name in followed else plan.files_before(former)
        done[name] = _going_on(before, former.log, written)
        followed.add(name)
    return done


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


def _clean(files: LakeFiles, plan: Plan, options: Options) -> int:
    before_ms = options.clock.now_ms() - options.orphan_grace_ms
    with connect(options.url, application_name="anabranch-compactor", autocommit=True) as conn:
        recent = store.recently_published(conn, plan.database.id, plan.database.epoch, before_ms)
        store.forget_files(conn, plan.database.id, before_ms)
    return remove_orphans(files, needed(recent), before_ms)


def _count(plan: Plan, outcome: RunOutcome, options: Options) -> None:
    name = plan.database.name
    metrics.count("anabranch_compacted_changes", outcome.changes, database=name)
    metrics.count("anabranch_compaction_bytes", outcome.bytes, database=name)
    metrics.count("anabranch_compaction_files", outcome.files, database=name)
    with connect(options.url, application_name="anabranch-compactor", autocommit=True) as conn:
        head = store.read_head(conn, plan.database.id)
    metrics.gauge("anabranch_compaction_lag", max(0, head - outcome.to_position) / 1000, database=name)


def _table(run: Run, name: str, units: Sequence[Unit], parts: Parts, proven: Sequence[Proven]) -> TableFiles:
    """The files of a table with those that the run has written.

    Raises:
        ProofError: they are not what the log, or the table sum, says.
        AlteredWhileReadError: a type was altered while rows of the table were read.
    """
    table, files, plan = run.plan.tables[name], run.plan.files_of(name), run.plan
    mine = {number for number, unit in enumerate(units) if unit.shape is table.shape}
    written = _history(name, table, units, proven)
    require_positions(f"the history of {name}", chain(*written.values()), plan.after + 1, plan.upto)
    base, rows = files.base, [one for one in proven if one.written.what == BASE and one.written.unit in mine]
    first = plan.upto if table.extent is not None else plan.after + 1
    require_positions(f"the base of {name}", rows, first, plan.upto)
    if table.extent is not None:
        buckets = next(unit.buckets for unit in units if unit.what == BASE and unit.shape is table.shape)
        try:
            base = first_base(name, buckets, rows, table.table_sum)
        except ProofError:
            require_unaltered(run.url, plan.database, name)
            raise
    elif base is not None:
        replaced = [one for one in parts.replaced if one.unit in mine]
        require_gone(name, rows, replaced)
        old = replaced_sums(replaced)
        base = with_delta(base, [one.file for one in rows], old, live_sums(f"the base of {name}", rows))
        if not table.resummed:
            require(f"the base of {name}", base_sum(base), table.table_sum)
    earlier = files.earlier
    if table.resummed and files.base is not None:
        earlier = (*earlier, EarlierBase(plan.after, files.base))
    return replace(_going_on(files, table.log, written), base=base, earlier=earlier)


def _history(
    name: str, table: TablePlan | FormerPlan, units: Sequence[Unit], proven: Sequence[Proven]
) -> dict[str, list[Proven]]:
    """The files that were written of a table's changes and conflicts.

    Raises:
        ProofError: it is not what Postgres says.
    """
    mine = [one for one in proven if units[one.written.unit].shape is table.shape]
    written = {what: [one for one in mine if one.written.what == what] for what in (CHANGES, CONFLICTS)}
    for what, wanted in ((CHANGES, table.log), (CONFLICTS, table.conflicts)):
        require(f"the {what} of {name}", total_of(written[what]), Sum() if wanted is None else wanted.effects)
    return written


def _going_on(files: TableFiles, log: store.LogSum | None, written: Mapping[str, Sequence[Proven]]) -> TableFiles:
    """A table's files with new ones of its history."""
    total = Sum(files.changes_count, int(files.changes_total, 16)) + (Sum() if log is None else log.effects)
    return replace(
        files,
        changes=(*files.changes, *(one.file for one in written[CHANGES])),
        changes_count=total.count,
        changes_total=f"{total.total:032x}",
        conflicts=(*files.conflicts, *(one.file for one in written[CONFLICTS])),
    )


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
        tuple(FormerTable(one.shape.file_table, one.last_position) for one in plan.former),
        plan.database.ddl_version,
    )


def _text(manifest: Manifest) -> str:
    return json.dumps(to_json(manifest), indent=1)


def _outcome(plan: Plan, manifest: Manifest) -> RunOutcome:
    new = [f for t in manifest.tables.values() for f in t.all_files if f"/{manifest.run_id}/" in f.path]
    lacking = tuple(name for name, table in plan.tables.items() if manifest.tables[name].base is None)
    return RunOutcome(
        manifest.run_id,
        plan.after,
        plan.upto,
        plan.changes,
        sum(f.rows for f in new),
        sum(f.bytes for f in new),
        len(new),
        lacking,
    )
