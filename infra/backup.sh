#!/bin/sh
# Backs Khala up while it runs. Usage: infra/backup.sh dump|base FOLDER
#
#   dump   one database by pg_dump: small, restores into any newer Postgres
#   base   the whole cluster by pg_basebackup: with archived WAL, restores any moment after it
#
# Reads the same variables as Khala (DATABASE_URL, DATABASE_DIRECT_URL, BLOB_URL, KHALA_HOME, KHALA_PG_BIN). Postgres'
# programs must not be older than the server. PYTHON: one that has Khala, by default .venv's. KEEP: after a dump, delete
# all dumps but so many, and without base backups also the blobs that none of them names; by default nothing goes.
#
# Makes FOLDER/<time>-<kind>, whole or not at all, and adds blobs to FOLDER/blobs, which all backups share.
set -eu
case "${1:-}" in dump | base) kind=$1 ;; *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
folder=${2:?where to?}
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
if [ -z "${KHALA_WITH_POSTGRES:-}" ]; then
    KHALA_WITH_POSTGRES=1 exec "$python" "$here/infra/with_postgres.py" sh "$0" "$@"
fi

umask 077
name=$(date -u +%Y%m%dT%H%M%SZ)-$kind
made=$folder/$name.part
mkdir -p "$folder/blobs"
if ! mkdir "$folder/lock" 2>/dev/null; then
    if kill -0 "$(cat "$folder/lock/pid")" 2>/dev/null; then
        echo "Error: another backup to $folder is under way." >&2
        exit 1
    fi
    echo "A backup to $folder was interrupted; what it left is removed." >&2
    rm -rf "$folder"/*.part
fi
echo $$ >"$folder/lock/pid"
trap 'rm -rf "$made" "$folder/lock"' EXIT
trap 'exit 130' HUP INT TERM
mkdir "$made"

# Blobs, database, blobs: bytes are there before a row names them, so the second look has what the rows name that came
# since the first; and bytes go only after their last row, so the first look has what was collected before the second.
"$python" "$here/infra/blobs.py" save "$folder/blobs"
if [ "$kind" = dump ]; then
    pg_dump --format=custom --no-owner --no-privileges --no-unlogged-table-data --lock-wait-timeout=60s \
        --file="$made/database.dump"
    # The names as the dump has them, and not as they are by now.
    pg_restore --data-only --table=objects --file="$made/objects.sql" "$made/database.dump"
    awk -F '\t' '
        /^COPY public.objects/ {
            split($0, part, /[(),]+ */)
            for (i in part) if (part[i] == "stored") column = i - 1
            copying = 1
            next
        }
        /^\\\.$/ { copying = 0 }
        copying && $column == "t" { print substr($1, 4) }
    ' "$made/objects.sql" >"$made/blobs"
    rm "$made/objects.sql"
else
    pg_basebackup --pgdata="$made/base" --format=plain --wal-method=stream --checkpoint=fast
    # Names of now, and more than the backup has: those of a later moment may be wanted.
    psql --no-psqlrc -qAt -v ON_ERROR_STOP=1 \
        -c "SELECT encode(sha256, 'hex') FROM objects WHERE stored" >"$made/blobs"
fi
"$python" "$here/infra/blobs.py" save "$folder/blobs"
[ "$kind" = base ] || "$python" "$here/infra/blobs.py" check "$folder/blobs" "$made/blobs"
mv "$made" "$folder/$name"

if [ "$kind" = dump ] && [ -n "${KEEP:-}" ]; then
    find "$folder" -maxdepth 1 -name '*-dump' | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do
        rm -rf "$old"
    done
    if [ -z "$(find "$folder" -maxdepth 1 -name '*-base' | head -n 1)" ]; then
        cat "$folder"/*-dump/blobs | sort -u >"$folder/named.part"
        find "$folder/blobs" -type f | while read -r blob; do
            grep -qxF "${blob##*/}" "$folder/named.part" || rm "$blob"
        done
        rm "$folder/named.part"
    fi
fi
echo "$folder/$name"
