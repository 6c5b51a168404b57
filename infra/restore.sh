#!/bin/sh
# Restores what infra/backup.sh made. No Khala may run on the database meanwhile. Usage:
#
#   infra/restore.sh dump BACKUP                        into an empty database, and to where Khala keeps blobs
#   infra/restore.sh base BACKUP DATA ARCHIVE [TIME]    makes DATA a Postgres' data directory that goes on from the base
#                                                       backup by the WAL in ARCHIVE, to its end or to TIME, as
#                                                       '2026-01-31 12:00:00+00'; start Postgres on it, and then:
#   infra/restore.sh settle BACKUP                      puts blobs back, and makes the database fit to be served
#
# `dump` settles by itself. Variables are those of infra/backup.sh; OWNER: who Postgres runs as, where root does this
# (by default nobody, as the Postgres that comes along does).
set -eu
case "${1:-}" in dump | base | settle) kind=$1 ;; *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
backup=${2:?which backup?}
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"

if [ "$kind" = base ]; then
    data=${3:?where to?}
    archive=${4:?where is the archived WAL?}
    if [ -e "$data" ] && [ -n "$(ls -A "$data")" ]; then
        echo "Error: $data is not empty: nothing is overwritten here." >&2
        exit 1
    fi
    mkdir -p "$data"
    cp -R "$backup/base/." "$data"
    {
        echo "restore_command = 'cp \"$archive/%f\" \"%p\"'"
        echo "recovery_target_action = 'promote'"
        echo "recovery_target_timeline = 'latest'"
        [ -z "${5:-}" ] || echo "recovery_target_time = '$5'"
        # The restored one would write over what the lost one has archived: archive elsewhere, and switch it on again.
        echo "archive_mode = 'off'"
    } >>"$data/postgresql.auto.conf"
    touch "$data/recovery.signal"
    chmod 700 "$data"
    if [ "$(id -u)" = 0 ]; then chown -R "${OWNER:-nobody}" "$data"; fi
    echo "Start Postgres on $data, and then: infra/restore.sh settle $backup"
    exit
fi

if [ -z "${KHALA_WITH_POSTGRES:-}" ]; then
    KHALA_WITH_POSTGRES=1 exec "$python" "$here/infra/with_postgres.py" sh "$0" "$@"
fi
ask() { psql --no-psqlrc -qAt -v ON_ERROR_STOP=1 "$@"; }
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT

if [ "$kind" = dump ]; then
    if [ "$(ask -c "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")" != 0 ]; then
        echo "Error: the database is not empty, and nothing is overwritten here: let DATABASE_URL name a new one." >&2
        exit 1
    fi
    # Bytes first, as Khala itself does it.
    "$python" "$here/infra/blobs.py" load "$(dirname "$backup")/blobs" "$backup/blobs" "$notes/missing"
    if [ -s "$notes/missing" ]; then
        echo "Error: $(wc -l <"$notes/missing") blobs are neither in the backup nor where Khala keeps them." >&2
        exit 1
    fi
    pg_restore --single-transaction --no-owner --no-privileges --dbname="${PGDATABASE:-khala}" "$backup/database.dump"
else
    tries=0
    while [ "$(ask -c 'SELECT pg_is_in_recovery()')" = t ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt 3600 ]; then
            echo "Error: Postgres still recovers after an hour; its log says how far it is." >&2
            exit 1
        fi
        sleep 1
    done
    ask -c "SELECT encode(sha256, 'hex') FROM objects WHERE stored" >"$notes/wanted"
    "$python" "$here/infra/blobs.py" load "$(dirname "$backup")/blobs" "$notes/wanted" "$notes/missing"
    if [ -s "$notes/missing" ]; then
        echo "$(wc -l <"$notes/missing") blobs came after the last copy, and are lost:" >&2
        cat "$notes/missing" >&2
        # So that whoever has one and uploads it again is not told that it is there.
        sed "s/.*/UPDATE objects SET stored = false WHERE sha256 = '\\\\x&';/" "$notes/missing" |
            ask --single-transaction
    fi
fi

# Whoever followed has cursors that may be of a time that never came to be. Over this gap none of them is served: all
# are told to forget what they have.
ask --single-transaction <<'SQL'
UPDATE threads SET revision = revision + 1000000000, reset_revision = revision + 1000000000;
UPDATE users SET revision = revision + 1000000000, floor_revision = revision + 1000000000;
SQL
ask -c ANALYZE
"$python" -m app migrate
"$python" -m app verify
cat <<'TEXT'
Restored. Before you serve it, see "After a restore" in docs/operations.md: who signed out since the backup is signed in
again, and what was spent since is not counted.
TEXT
