"""Makes the next release of the installed one, inside its image: a migration that gives each of the product's tables
one column more, which the release before works with, and a version of its own."""

from pathlib import Path

import anabranch
from anabranch.store import revisions

REVISION = "9001"
VERSION = "9.0.1"
MIGRATION = '''"""What the next release adds."""

import sqlalchemy as sa
from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None
works_from = "{before}"
TABLES = """
select relname from pg_class
where relnamespace = 'anabranch'::regnamespace and relkind in ('r', 'p') and not relispartition
  and relname not in ('schema_revision', 'code_revisions')
"""


def upgrade() -> None:
    # A slow step, as the filling of something new; services go on meanwhile.
    op.execute("select pg_sleep(3)")
    names = op.get_bind().execute(sa.text(TABLES)).scalars().all()
    take_tables(names)
    for name in names:
        op.execute(f"alter table anabranch.{{name}} add column next_release text not null default 'x'")
    op.execute("create table anabranch.next_release (id int primary key)")
'''

package = Path(anabranch.__path__[0])
text = MIGRATION.format(revision=REVISION, before=revisions.head())
(package / "store" / "migrations" / "versions" / f"{REVISION}_next.py").write_text(text, encoding="utf-8")
described = list(package.parent.glob("anabranch*.dist-info/METADATA"))
assert described, "nothing says which version is installed"
for file in described:
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = [f"Version: {VERSION}\n" if line.startswith("Version: ") else line for line in lines]
    assert changed != lines, file
    file.write_text("".join(changed), encoding="utf-8")
