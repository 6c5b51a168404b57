"""The rules by which a new schema leaves the version before at work: read from the SQL that a migration runs."""

import re
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO

import msgspec
from alembic import command
from alembic.script import ScriptDirectory

from khala.store.postgres import migrations

WORD = r'"?(\w+)"?'
RULES: dict[str, str] = {
    "drops a table": rf"^DROP TABLE (?:IF EXISTS )?{WORD}",
    "drops a column": rf"^ALTER TABLE {WORD} DROP COLUMN {WORD}",
    "renames": rf"^ALTER (?:TABLE|INDEX|SEQUENCE|TYPE) {WORD} RENAME\b",
    "changes a type": rf"^ALTER TABLE {WORD} ALTER COLUMN {WORD} (?:SET DATA )?TYPE\b",
    "takes a default away": rf"^ALTER TABLE {WORD} ALTER COLUMN {WORD} DROP DEFAULT\b",
    "forbids nulls": rf"^ALTER TABLE {WORD} ALTER COLUMN {WORD} SET NOT NULL\b",
    "adds what must be given": rf"^ALTER TABLE {WORD} ADD COLUMN {WORD} (?!.*\bDEFAULT\b).*\bNOT NULL\b",
    "rewrites the table": rf"^ALTER TABLE {WORD} ADD COLUMN {WORD} .*\bDEFAULT .*"
    r"(?:gen_random_uuid|clock_timestamp|random|nextval|uuidv7)\(",
    "adds a constraint": rf"^ALTER TABLE {WORD} ADD (?:CONSTRAINT|CHECK|UNIQUE|FOREIGN|PRIMARY|EXCLUDE)\b",
    "drops an index": rf"^DROP INDEX (?:CONCURRENTLY )?(?:IF EXISTS )?{WORD}",
    "locks while it indexes": rf"^CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)(?:IF NOT EXISTS )?{WORD} ON {WORD}",
    "forbids doubles": rf"^CREATE UNIQUE INDEX CONCURRENTLY (?:IF NOT EXISTS )?{WORD} ON {WORD}",
    "changes rows": rf"^(?:UPDATE|DELETE FROM|TRUNCATE(?: TABLE)?) (?:ONLY )?{WORD}",
    "is no plain statement": r"^(?:DO|WITH|CALL|CREATE (?:OR REPLACE )?(?:FUNCTION|TRIGGER|RULE)|LOCK)\b",
}
"""What the version before may trip over, or what keeps it waiting, by the statements that do it."""

MADE = re.compile(rf"^CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?{WORD}")
ON_TABLE = re.compile(rf"^(?:ALTER TABLE|CREATE (?:UNIQUE )?INDEX .*? ON|UPDATE) (?:ONLY )?{WORD}")


class Breach(msgspec.Struct, frozen=True):
    """A statement of a migration that breaks a rule."""

    revision: str
    rule: str
    statement: str

    @property
    def name(self) -> tuple[str, str, str]:
        """The revision, the rule, and what is named in the statement: a table or index, and a column."""
        found = re.match(RULES[self.rule], self.statement)
        named = [word for word in found.groups() if word] if found else []
        return self.revision, self.rule, ".".join(named)


def statements(revision: str, before: str | None) -> list[str]:
    """What the migration from `before` to `revision` runs, each statement on one line."""
    said = StringIO()
    config = migrations.alembic_config()
    config.output_buffer = said
    with redirect_stdout(said):
        command.upgrade(config, f"{before or 'base'}:{revision}", sql=True)
    bare = re.sub(r"--[^\n]*", "", said.getvalue())
    return [" ".join(one.split()) for one in bare.split(";") if one.strip()]


def breaches(revision: str, said: Iterable[str]) -> list[Breach]:
    """Where these statements break a rule. A table that they make themselves nobody uses yet."""
    made: set[str] = set()
    found = []
    for statement in said:
        if new := MADE.match(statement):
            made.add(new[1])
        on = ON_TABLE.match(statement)
        if not (on and on[1] in made):
            found += [
                Breach(revision, rule, statement)
                for rule, pattern in RULES.items()
                if re.match(pattern, statement, re.IGNORECASE) and "alembic_version" not in statement
            ]
    return found


def history() -> list[tuple[str, str | None]]:
    """All revisions, each with the one before it, the oldest first."""
    scripts = reversed(list(ScriptDirectory.from_config(migrations.alembic_config()).walk_revisions()))
    return [(script.revision, str(script.down_revision) if script.down_revision else None) for script in scripts]
