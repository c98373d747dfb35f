"""Keys that are too long for an index of ours stand there by their digests.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
# An older resolver goes on writing such keys as they are, as far as its index takes them.
works_from = "0009"

# As store.index_keys makes them. Few keys are so long: until now the index took them only where they could be packed.
KEYS = """
update anabranch.row_versions
set key = encode(sha256(convert_to(key, 'UTF8')), 'hex') || repeat('.', 2600)
where octet_length(key) > 2600;
update anabranch.inbox
set waits_for_key = encode(sha256(convert_to(waits_for_key, 'UTF8')), 'hex') || repeat('.', 2600)
where octet_length(waits_for_key) > 2600;
comment on column anabranch.row_versions.key is
    'the key''s text; where it has more than 2,600 bytes its SHA-256 in hexadecimal and 2,600 dots';
comment on column anabranch.inbox.waits_for_key is 'as in row_versions';
"""
INDEX = """
drop index anabranch.conflicts_row;
create index conflicts_row on anabranch.conflicts (table_id, left(key, 500), position, batch_id, ordinal);
"""
BEFORE = """
drop index anabranch.conflicts_row;
create index conflicts_row on anabranch.conflicts (table_id, key, position, batch_id, ordinal);
"""


def upgrade() -> None:
    """Replace long keys, and make the index of a row's conflicts of the beginnings of keys."""
    op.execute(KEYS)
    take_tables(["conflicts"])
    op.execute(INDEX)


def downgrade() -> None:
    """Make the index anew. Digests stay: no key is as long."""
    op.execute(BEFORE)
