#!/bin/sh
# Installs the browsers in which the page is tested, as `tests/support/browser_program.py` chooses them: Debian's
# Chromium, if no Chromium or Chrome exists, and chromium-headless-shell, which takes less of a core. Where that cannot be
# installed, it says so, and Chromium does its work. If there is no Chromium, it says what to do and exits with 1.
set -eu
[ -n "${CHROMIUM:-}" ] && exit 0

has_chromium() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" >/dev/null 2>&1 && return 0
    done
    [ -d "/Applications/Google Chrome.app" ] || [ -d "/Applications/Chromium.app" ]
}

has_shell() {
    command -v chromium-headless-shell >/dev/null 2>&1
}

apt() {
    if [ "$(id -u)" = 0 ]; then
        apt-get -qq "$@" >/dev/null
    else
        sudo -n apt-get -qq "$@" >/dev/null
    fi
}

install() {
    apt install -y --no-install-recommends "$@"
}

# Whether packages can be installed without a question.
may_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# Whether apt knows the package, without asking its servers.
is_known() {
    apt-cache policy "$1" 2>/dev/null | grep -q "Candidate: [0-9]"
}

if may_install; then
    if ! has_chromium && apt update; then
        install chromium chromium-headless-shell 2>/dev/null || install chromium || true
    fi
    if ! has_shell && is_known chromium-headless-shell; then
        install chromium-headless-shell || true
    fi
fi
if ! has_chromium; then
    echo "The tests of the page need Chromium or Chrome: install it, or set CHROMIUM to its path." >&2
    exit 1
fi
has_shell || echo "The page is tested in Chromium: chromium-headless-shell, which takes less time, is not installed." >&2
