#!/bin/sh
# Installs the Debian packages of the services that some tests need, if they are missing, and leaves none of them
# running. If it cannot install them, it says what to do.
# Usage: infra/services.sh [PROGRAM …], with programs that are named below
set -eu
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
[ $# -gt 0 ] || set -- nginx pgbouncer nats-server systemd-analyze promtool postgres

missing=
for program in "$@"; do
    command -v "$program" >/dev/null 2>&1 && continue
    # Debian installs the Postgres server outside PATH, in a folder of its major version.
    [ "$program" = postgres ] && ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 && continue
    case $program in
        nginx) missing="$missing nginx-light" ;;
        systemd-analyze) missing="$missing systemd" ;;
        promtool) missing="$missing prometheus" ;;
        postgres) missing="$missing postgresql" ;;
        pgbouncer | nats-server | faketime) missing="$missing $program" ;;
        *) echo "$0 does not know $program" >&2 && exit 2 ;;
    esac
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Please install:$missing. Tests that need them are skipped." >&2
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null && exec sudo -n sh "$0" "$@"
    echo "Please run: sudo apt-get install$missing. Tests that need them are skipped." >&2
    exit 0
fi

echo "Installing$missing, for tests" >&2
# Debian starts a service after its installation, unless this file exits with 101.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # names of packages, one word each
apt-get install -y -qq --no-install-recommends $missing >/dev/null
if [ -d /run/systemd/system ]; then
    for package in $missing; do
        case $package in
            nginx-light) systemctl --quiet disable nginx ;;
            pgbouncer | nats-server | prometheus | postgresql) systemctl --quiet disable "$package" ;;
        esac
    done
fi
