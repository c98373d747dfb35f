"""TRUNCATE by a transaction that sees one moment is captured exactly, or refused; ``capture_row`` looks up no name.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
works_from = "0008"

# A REPEATABLE READ or SERIALIZABLE transaction reads the rows of its own moment, while TRUNCATE removes those of now.
# The two are the same where nobody has committed since: then every transaction that this one does not see is still at
# work, and can't have touched the table, which is locked, or was rolled back. Numbers of transactions are gone through
# from the moment's until Postgres says that there is none of that number yet.
#
# The refusal is a failure to serialize, which applications at these levels are prepared to meet by trying again.
TRUNCATE = """
create or replace function anabranch.capture_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off
as $$
declare
    client_encoding constant name := pg_client_encoding();
    most constant int := 100000;
    moment pg_snapshot;
    behind bool;
    next bigint;
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        moment := pg_current_snapshot();
        behind := exists (
            select from pg_snapshot_xip(moment) running where pg_xact_status(running) = 'committed'
        );
        next := pg_snapshot_xmax(moment)::text::bigint;
        begin
            for later in next .. next + most loop
                exit when behind;
                behind := pg_xact_status(later::text::xid8) = 'committed' or later = next + most;
            end loop;
        exception when invalid_parameter_value then
            null;  -- none of that number has begun
        end;
        if behind then
            raise exception using
                errcode = 'serialization_failure',
                message = format('could not serialize access: TRUNCATE of the synced table %s would remove rows that '
                                 'this transaction can''t see', tg_relid::regclass),
                hint = 'Others have committed since the transaction began. Try it again with TRUNCATE as the first '
                       'statement, or use DELETE, or READ COMMITTED.';
        end if;
    end if;
    perform set_config('client_encoding', 'UTF8', true);
    execute format(
        'insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application) '
        'select $1, $2, pg_current_xact_id(), 3, pg_trigger_depth(), record_send(t.*), '
        'session_user, current_setting(''application_name'') from %s t', tg_relid::regclass)
    using tg_argv[0]::int4, tg_argv[1]::int4;
    perform set_config('client_encoding', client_encoding, true);
    return null;
end
$$;
"""

# It runs with the rights of schema anabranch's owner, and the writer's search path is not to say what "=" means.
ROW = """
create or replace function anabranch.capture_row() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    client_encoding constant name := pg_client_encoding();
begin
    if client_encoding <> 'UTF8' then
        perform set_config('client_encoding', 'UTF8', true);
    end if;
    insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
    values (tg_argv[0]::int4, tg_argv[1]::int4, pg_current_xact_id(),
            case tg_op when 'INSERT' then 1 when 'UPDATE' then 2 else 3 end, pg_trigger_depth(),
            case when tg_op <> 'INSERT' then record_send(old) end,
            case when tg_op <> 'DELETE' then record_send(new) end,
            session_user, current_setting('application_name'));
    if client_encoding <> 'UTF8' then
        perform set_config('client_encoding', client_encoding, true);
    end if;
    return null;
end
$$;
"""


def upgrade() -> None:
    """Make both functions anew; the triggers that call them stay."""
    op.execute(TRUNCATE)
    op.execute(ROW)


def downgrade() -> None:
    """Nothing: the release before works with them, and better than with its own."""
