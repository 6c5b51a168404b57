"""Rules for migrations that keep the previous version working, checked on the SQL of each migration."""

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
    "indexes in a transaction": rf"^CREATE INDEX CONCURRENTLY (?:IF NOT EXISTS )?{WORD} ON {WORD}",
    "forbids doubles": rf"^CREATE UNIQUE INDEX CONCURRENTLY (?:IF NOT EXISTS )?{WORD} ON {WORD}",
    "changes rows": rf"^(?:UPDATE|DELETE FROM|TRUNCATE(?: TABLE)?) (?:ONLY )?{WORD}",
    "is no plain statement": r"^(?:DO|WITH|CALL|CREATE (?:OR REPLACE )?(?:FUNCTION|TRIGGER|RULE))\b",
}
"""Changes that break the previous version or block it, with patterns of their statements."""

CREATED = re.compile(rf"^CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?{WORD}")
LOCKED = re.compile(r"^LOCK TABLE ([\w, ]+) IN ACCESS EXCLUSIVE MODE$")
REFERENCED = re.compile(rf" REFERENCES {WORD}")
ON_TABLE = re.compile(rf"^(?:ALTER TABLE|CREATE (?:UNIQUE )?INDEX .*? ON|UPDATE) (?:ONLY )?{WORD}")


class Breach(msgspec.Struct, frozen=True):
    """A statement of a migration that breaks a rule."""

    revision: str
    rule: str
    statement: str

    @property
    def name(self) -> tuple[str, str, str]:
        """The revision, the rule, and the table or index and column in the statement."""
        found = re.match(RULES[self.rule], self.statement)
        named = [word for word in found.groups() if word] if found else []
        return self.revision, self.rule, ".".join(named)


def statements(revision: str, before: str | None) -> list[str]:
    """The statements of the migration from `before` to `revision`, each on one line."""
    output = StringIO()
    config = migrations.alembic_config()
    config.output_buffer = output
    with redirect_stdout(output):
        command.upgrade(config, f"{before or 'base'}:{revision}", sql=True)
    bare = re.sub(r"--[^\n]*", "", output.getvalue())
    return [" ".join(statement.split()) for statement in bare.split(";") if statement.strip()]


def breaches(revision: str, sql: Iterable[str]) -> list[Breach]:
    """The statements that break a rule. Tables that they create are exempt, because they are not in use yet."""
    created: set[str] = set()
    found = []
    for statement in sql:
        if new := CREATED.match(statement):
            created.add(new[1])
        on = ON_TABLE.match(statement)
        if not (on and on[1] in created):
            found += [
                Breach(revision, rule, statement)
                for rule, pattern in RULES.items()
                if re.match(pattern, statement, re.IGNORECASE) and "alembic_version" not in statement
            ]
    return found


def separate_locks(sql: Iterable[str]) -> list[str]:
    """The tables in use that the statements lock one after another, if there are several.

    A transaction that comes between two of these locks can hold the second table and wait for the first, while the
    migration waits for the second. One LOCK statement for all of them leaves no time for that.
    """
    created: set[str] = set()
    together: set[str] = set()
    apart: list[str] = []
    for statement in sql:
        if new := CREATED.match(statement):
            created.add(new[1])
        if locked := LOCKED.match(statement):
            together |= set(locked[1].split(", "))
        on = ON_TABLE.match(statement)
        used = {on[1]} if on else set()
        used |= set(REFERENCED.findall(statement))
        apart += sorted(used - created - together - {"alembic_version", *apart})
    return apart if len(apart) + bool(together) > 1 else []


def history() -> list[tuple[str, str | None]]:
    """All revisions, each with the one before it, the oldest first."""
    scripts = reversed(list(ScriptDirectory.from_config(migrations.alembic_config()).walk_revisions()))
    return [(script.revision, str(script.down_revision) if script.down_revision else None) for script in scripts]
