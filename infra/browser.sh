#!/bin/sh
# Installs Debian's Chromium, in which the page is tested, if no Chromium or Chrome exists. If it cannot install
# Chromium, it says what to do and exits with 1.
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ -n "${CHROMIUM:-}" ] && exit 0
[ -d "/Applications/Google Chrome.app" ] && exit 0
[ -d "/Applications/Chromium.app" ] && exit 0

install="apt-get install -y -qq --no-install-recommends chromium"
if command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq && $install >/dev/null && exit 0
    elif sudo -n true 2>/dev/null; then
        sudo -n apt-get update -qq && sudo -n $install >/dev/null && exit 0
    fi
fi
echo "The tests of the page need Chromium or Chrome: install it, or set CHROMIUM to its path." >&2
exit 1
