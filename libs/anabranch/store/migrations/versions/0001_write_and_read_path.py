"""The tables of the write path and the read path.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

# Every id that people see (batch, node) is a ULID in its text form under the "C" collation, so that its order
# is the order of its bytes. Databases and tables have small numbers, because they stand in every row.
TABLES = """
create table anabranch.databases (
    id             integer generated always as identity primary key,
    name           text collate "C" not null constraint databases_name_key unique,
    schema_name    text collate "C" not null constraint databases_schema_name_key unique,
    epoch          text collate "C" not null,
    floor_ms       bigint not null default 0,
    schema_version bigint not null default 1,
    policy         jsonb not null default '{}',
    seal_key       bytea not null,
    created_ms     bigint not null
);
comment on column anabranch.databases.seal_key is
    'secret of the seals in position tokens, page tokens and resume tokens';

create table anabranch.synced_tables (
    id             integer generated always as identity primary key,
    database_id    integer not null references anabranch.databases (id) on delete cascade,
    name           text collate "C" not null,
    columns        jsonb not null,
    key_columns    text[] collate "C" not null,
    policy         jsonb not null default '{}',
    audience       text,
    registered_ms  bigint not null,
    first_position bigint not null,
    constraint synced_tables_name_key unique (database_id, name)
);
comment on column anabranch.synced_tables.columns is
    'the columns as the catalog had them at schema_version, in the table''s order';
comment on column anabranch.synced_tables.first_position is
    'the head when the table was registered: older rows are in no log';

create table anabranch.table_sums (
    table_id  integer primary key references anabranch.synced_tables (id) on delete cascade,
    position  bigint not null,
    row_count bigint not null,
    row_hash  bytea not null
) with (fillfactor = 50);

create table anabranch.nodes (
    database_id    integer not null references anabranch.databases (id) on delete cascade,
    node_id        text collate "C" not null,
    name           text not null,
    principal      text collate "C" not null,
    epoch          text collate "C" not null,
    token          bytea not null,
    previous_token bytea,
    last_call      text[] collate "C" not null default '{}',
    last_seen_ms   bigint not null,
    acknowledged   bigint not null default 0,
    last_accepted  text collate "C",
    constraint nodes_pkey primary key (database_id, node_id)
) with (fillfactor = 50);
comment on column anabranch.nodes.last_call is
    'batch ids of the call that was answered with token: naming one proves that its answer was lost';
comment on column anabranch.nodes.epoch is
    'the database''s epoch when token was given: after a rewind any token is taken once';
comment on column anabranch.nodes.last_accepted is 'the greatest id among the accepted batches of the node';

create table anabranch.inbox (
    database_id      integer not null references anabranch.databases (id) on delete cascade,
    batch_id         text collate "C" not null,
    arrival          bigint generated always as identity (cache 1000),
    node_id          text collate "C" not null,
    principal        text collate "C" not null,
    basis            bigint not null,
    prev             text collate "C",
    payload          bytea not null,
    payload_sha256   bytea not null,
    traceparent      text,
    arrived_ms       bigint not null,
    park_deadline_ms bigint,
    waits_for_batch  text collate "C",
    waits_for_table  integer,
    waits_for_key    text collate "C",
    attempts         smallint not null default 0,
    refusal          smallint,
    refusal_message  text,
    constraint inbox_pkey primary key (database_id, batch_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_analyze_scale_factor = 0.05);
alter table anabranch.inbox alter column payload set storage external;
comment on column anabranch.inbox.refusal is
    'an anabranch.v1.Reason: ingest found the batch invalid, the resolver only records it';
create index inbox_ready on anabranch.inbox (database_id, principal, arrival)
    where park_deadline_ms is null;
create index inbox_parked on anabranch.inbox (database_id, park_deadline_ms)
    where park_deadline_ms is not null;
create index inbox_waits_for_batch on anabranch.inbox (database_id, waits_for_batch)
    where waits_for_batch is not null;
create index inbox_waits_for_row on anabranch.inbox (waits_for_table, waits_for_key)
    where waits_for_key is not null;
create index inbox_node on anabranch.inbox (database_id, node_id, batch_id);

create table anabranch.batches (
    database_id    integer not null references anabranch.databases (id) on delete cascade,
    batch_id       text collate "C" not null,
    node_id        text collate "C" not null,
    principal      text collate "C" not null,
    payload_sha256 bytea not null,
    status         smallint not null,
    reason         smallint not null default 0,
    position       bigint not null,
    place          bigint not null,
    verdict        bytea not null,
    decided_ms     bigint not null,
    constraint batches_pkey primary key (database_id, batch_id)
);
comment on column anabranch.batches.status is 'an anabranch.v1.VerdictStatus: 1 applied, 2 rejected';
comment on column anabranch.batches.verdict is 'the serialized anabranch.v1.Verdict';
create index batches_accepted on anabranch.batches (database_id, node_id, batch_id) include (position)
    where status = 1;

create table anabranch.groups (
    database_id integer not null references anabranch.databases (id) on delete cascade,
    position    bigint not null,
    batches     integer not null,
    changes     integer not null,
    chain       bytea not null,
    sums        bytea[] not null,
    constraint groups_pkey primary key (database_id, position)
);
comment on column anabranch.groups.sums is
    'serialized anabranch.v1.TableSum of each table that the group changed, after it';

create table anabranch.log (
    database_id     integer not null,
    position        bigint not null,
    batch_id        text collate "C" not null,
    ordinal         integer not null,
    node_id         text collate "C" not null,
    table_id        integer not null,
    key             text collate "C" not null,
    type            smallint not null,
    effect          bytea not null,
    changed         text[] collate "C" not null default '{}',
    effect_hash     bytea not null,
    audience_before text[],
    audience_after  text[],
    constraint log_pkey primary key (database_id, position, batch_id, ordinal)
) partition by range (position);
create table anabranch.log_default partition of anabranch.log default;
alter table anabranch.log_default alter column effect set storage external;
comment on column anabranch.log.effect is 'the serialized anabranch.v1.Effect';
comment on column anabranch.log.effect_hash is
    'BLAKE2b-128 of the effect''s canonical encoding (anabranch.values.canonical)';

create table anabranch.row_versions (
    table_id        integer not null,
    key             text collate "C" not null,
    last_position   bigint not null,
    last_node       text collate "C" not null,
    last_batch      text collate "C" not null,
    other_position  bigint not null default 0,
    insert_position bigint not null default 0,
    insert_place    bigint not null default 0,
    insert_node     text collate "C" not null default '',
    insert_batch    text collate "C" not null default '',
    tombstone_batch text collate "C",
    stamps          jsonb not null default '{}',
    overtaken       jsonb not null default '{}',
    constraint row_versions_pkey primary key (table_id, key)
) with (fillfactor = 80);
comment on column anabranch.row_versions.stamps is
    'column -> [place, batch, node, position], for the columns that an update wrote';
comment on column anabranch.row_versions.overtaken is
    'node -> greatest id of its batches that wrote the row, for nodes that are no longer the last writer';

create table anabranch.conflicts (
    database_id   integer not null references anabranch.databases (id) on delete cascade,
    position      bigint not null,
    batch_id      text collate "C" not null,
    ordinal       integer not null,
    table_id      integer not null,
    key           text collate "C" not null,
    column_name   text collate "C" not null,
    losing_value  bytea not null,
    losing_batch  text collate "C" not null,
    losing_node   text collate "C" not null,
    winning_batch text collate "C" not null,
    winning_node  text collate "C" not null,
    constraint conflicts_pkey primary key (database_id, position, batch_id, ordinal)
);
comment on column anabranch.conflicts.losing_value is 'the serialized anabranch.v1.Value';

create table anabranch.api_keys (
    id          text collate "C" primary key,
    secret_hash bytea not null,
    subject     text collate "C" not null,
    database_id integer references anabranch.databases (id) on delete cascade,
    role        text not null constraint api_keys_role_check check (role in ('device', 'admin')),
    created_ms  bigint not null,
    expires_ms  bigint,
    revoked_ms  bigint
);
comment on column anabranch.api_keys.database_id is 'the only database that the key opens; NULL opens all';
"""


_NAMES = (
    "api_keys",
    "conflicts",
    "row_versions",
    "log",
    "groups",
    "batches",
    "inbox",
    "nodes",
    "table_sums",
    "synced_tables",
    "databases",
)


def upgrade() -> None:
    """Make the tables."""
    op.execute(TABLES)


def downgrade() -> None:
    """Drop the tables with all that they hold."""
    for table in _NAMES:
        op.execute(f"drop table anabranch.{table}")
