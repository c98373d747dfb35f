"""The content that a scenario file may have. An unknown key is an error wherever it stands."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from anabranch.scenario.setting import AudiencesSpec, Claims, Name, Nodes, NodeSpec, Strict, TableSpec, Version

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Row]
Number: TypeAlias = Annotated[int, Field(ge=1)]
Number0: TypeAlias = Annotated[int, Field(ge=0)]

RESOLVER_POINTS = frozenset({"after_claim", "before_commit", "after_commit"})
INGEST_POINTS = frozenset({"before_append", "after_append", "before_answer"})
NODE_POINTS = frozenset({"after_local_commit", "before_apply", "after_apply"})
POINTS = {"conflict-resolver": RESOLVER_POINTS, "ingest": INGEST_POINTS}
SERVICES = frozenset({"ingest", "conflict-resolver", "snapshot", "retention-janitor"})
NODE_PREFIX = "node:"
ALL = "all"
SERVER = "server"


class TableRows(Strict):
    """Rows of a table."""

    table: Name
    rows: Rows


class TableKeys(Strict):
    """Keys of a table."""

    table: Name
    keys: list[Any]


class Insert(TableRows):
    """One batch with one insert."""

    node: Name


class Update(TableRows):
    """One batch with one update."""

    node: Name


class Delete(TableKeys):
    """One batch with one delete."""

    node: Name


class MutationSpec(Strict):
    """One mutation of a batch: exactly one of the three."""

    insert: TableRows | None = None
    update: TableRows | None = None
    delete: TableKeys | None = None

    @model_validator(mode="after")
    def _is_one(self) -> MutationSpec:
        if len(self.model_fields_set) != 1 or None in (getattr(self, name) for name in self.model_fields_set):
            raise ValueError("a mutation is one of insert, update, delete")
        return self


class BatchStep(Strict):
    """Several mutations in one batch."""

    node: Name
    mutations: Annotated[list[MutationSpec], Field(min_length=1)]


class Send(Strict):
    """Unsent batches, by number, one call each."""

    node: Name
    order: Annotated[list[Number], Field(min_length=1)]


class Resend(Strict):
    """A batch once more."""

    node: Name
    batch: Number
    times: Number = 1


class ClockStep(Strict):
    """A clock that is off from now on."""

    node: Name
    offset_ms: int


class Advance(Strict):
    """Time that passes for all."""

    days: Annotated[int | float, Field(ge=0)]


class CrashAt(Strict):
    """A fault point to die at."""

    process: Name
    point: Name

    @model_validator(mode="after")
    def _has_the_point(self) -> CrashAt:
        points = NODE_POINTS if self.process.startswith(NODE_PREFIX) else POINTS.get(self.process)
        if points is None:
            raise ValueError(f"{self.process!r} has no fault points; those are of {', '.join(POINTS)} and node:NAME")
        if self.point not in points:
            raise ValueError(f"{self.process} has the fault points {', '.join(sorted(points))}, not {self.point!r}")
        return self


class Copy(Strict):
    """A node's file as a second device."""

    node: Name
    as_: Name = Field(alias="as")


class Save(Strict):
    """A node's file, or the server's Postgres, kept under a label."""

    what: Name
    as_: Name = Field(alias="as")


class Rewind(Strict):
    """A file or a server put back as it was kept."""

    what: Name
    to: Name


class PullCut(Strict):
    """The node's next pull is cut."""

    node: Name
    after_rows: Number0


class Foreign(Strict):
    """Plain SQL on a node's file, by a connection that is not the node's."""

    node: Name
    sql: Name


class ClaimsStep(Strict):
    """The claims of the node's next token."""

    node: Name
    claims: Claims


class Login(Strict):
    """Another person opens the app on the device file; without ``claims`` with those that the person had last."""

    node: Name
    principal: Name
    claims: Claims | None = None


class App(Strict):
    """The app on a device file is another build: made for that schema version, or, without one, for any."""

    node: Name
    schema_: Version | None = Field(default=None, alias="schema")


class Register(Strict):
    """A table of the schema that is synced from now on."""

    table: Name
    policy: dict[str, Any] = Field(default_factory=dict)
    audience: Name | None = None


class Dead(Strict):
    """A dead letter, by number, replayed or discarded."""

    node: Name
    replay: Number | None = None
    discard: Number | None = None
    set: Row | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Dead:
        if (self.replay is None) == (self.discard is None):
            raise ValueError("give replay or discard")
        if self.set is not None and self.replay is None:
            raise ValueError("set belongs to replay")
        return self


class Restore(Strict):
    """A lost value put back."""

    node: Name
    conflict: Number


NodeRows: TypeAlias = Literal["same"] | dict[Name, Rows]
Status: TypeAlias = Literal["APPLIED", "REJECTED", "PENDING"]
OutcomeName: TypeAlias = Literal["APPLIED", "MERGED", "OVERWROTE", "SUPERSEDED", "REJECTED"]


class DeadSpec(Strict):
    """A dead letter that a story expects; a field that the story leaves out is not compared."""

    reason: str | None = None
    table: str | None = None
    key: Any = None
    constraint: str | None = None
    sqlstate: str | None = None
    message: str | None = None
    still_shown: bool | None = None
    server_row: Row | None = None
    server_row_now: Row | None = None


class ConflictSpec(Strict):
    """A losing value that a story expects; a field that the story leaves out is not compared."""

    table: str | None = None
    key: Any = None
    column: str | None = None
    loser: Any = None
    cause: Literal["", "COLUMN_DROPPED"] | None = None


class LogSpec(Strict):
    """How many accepted batches of nodes the log holds."""

    batches: Number0


class Expectations(Strict):
    """The facts that must be true; facts that are left out are not checked."""

    server: dict[Name, Rows] | None = None
    nodes: dict[Name, NodeRows] | None = None
    dead: dict[Name, list[DeadSpec]] | None = None
    queue: dict[Name, Number0] | None = None
    conflicts: list[ConflictSpec] | None = None
    verdicts: dict[Name, list[Status]] | None = None
    outcomes: dict[Name, list[list[OutcomeName]]] | None = None
    log: LogSpec | None = None
    pulls: dict[Name, Number0] | None = None
    pulled: dict[Name, Literal["parquet", "postgres"]] | None = None
    sums: Literal["agree"] | None = None
    parquet: Literal["same"] | None = None
    as_is: bool = False


class Step(Strict):
    """One step: exactly one key."""

    insert: Insert | None = None
    update: Update | None = None
    delete: Delete | None = None
    batch: BatchStep | None = None
    fails: Fails | None = None
    sync: Name | list[Name] | None = None
    flush: Name | list[Name] | None = None
    read: Name | list[Name] | None = None
    offline: Name | None = None
    online: Name | None = None
    send: Send | None = None
    resend: Resend | None = None
    drop_ack: Name | None = None
    clock: ClockStep | None = None
    advance: Advance | None = None
    crash: Name | None = None
    crash_at: CrashAt | None = None
    copy_: Copy | None = Field(None, alias="copy")
    save: Save | None = None
    rewind: Rewind | None = None
    sql: Name | None = None
    register_: Register | None = Field(None, alias="register")
    foreign: Foreign | None = None
    fresh: Name | None = None
    pull_cut: PullCut | None = None
    claims: ClaimsStep | None = None
    login: Login | None = None
    app: App | None = None
    compact: None = None
    janitor: None = None
    dead: Dead | None = None
    restore: Restore | None = None
    check: Expectations | None = None
    wait_ms: Number0 | None = None

    @property
    def name(self) -> str:
        """The step's key in the file."""
        return next(iter(self.model_fields_set)).rstrip("_")

    @property
    def given(self) -> Any:
        """The step's value in the file."""
        return getattr(self, next(iter(self.model_fields_set)))

    @model_validator(mode="after")
    def _is_one(self) -> Step:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"a step has one key, not {len(self.model_fields_set)}")
        if self.given is None and self.name not in ("compact", "janitor"):
            raise ValueError(f"{self.name} is given nothing")
        return self


class Fails(Strict):
    """A step that must raise, with the word in its error."""

    step: Step
    error: Name


class Scenario(Strict):
    """A whole file."""

    name: Name
    from_: Any = Field("", alias="from")
    tables: Annotated[list[TableSpec], Field(min_length=1)]
    setup: list[str] = Field(default_factory=list)
    audiences: AudiencesSpec | None = None
    policy: dict[str, Any] = Field(default_factory=dict)
    nodes: Nodes = Field(default_factory=list)
    steps: list[Step] = Field(default_factory=list)
    expect: Expectations = Expectations()

    @property
    def who(self) -> dict[str, NodeSpec]:
        """The nodes that the story begins with, by name."""
        return self.nodes if isinstance(self.nodes, dict) else {name: NodeSpec() for name in self.nodes}


Step.model_rebuild()
