#!/bin/sh
# Creates .venv with the packages of uv.lock. Usage: infra/setup.sh [python3]
set -eu
python=${1:-python3}
cd "$(dirname "$0")/.."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Khala needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Try: make PYTHON=python3.12 …" >&2
    exit 1
}

# Debian ships the modules that `venv` needs in a separate package.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")')
    echo "Installing $package, which $python needs for a virtual environment" >&2
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq && apt-get install -y -qq "$package"
    else
        sudo -n apt-get update -qq && sudo -n apt-get install -y -qq "$package" || {
            echo "Please run: sudo apt-get install $package" >&2
            exit 1
        }
    fi
fi

[ -x .venv/bin/pip ] || "$python" -m venv .venv
[ -x .venv/bin/uv ] || .venv/bin/pip install --quiet --disable-pip-version-check "uv>=0.8"
# The lock file fixes the versions. The package index is configured on the machine.
env -u VIRTUAL_ENV .venv/bin/uv sync --quiet --frozen --inexact --python .venv/bin/python
sh infra/sandbox.sh
