#!/bin/sh
# Installs Debian's bubblewrap on Linux if it is missing. bubblewrap creates the sandboxes in which agents' code runs.
# If it cannot be installed, this script says what to do. The server runs without bubblewrap, but then offers no tool
# that runs code.
set -eu
[ "$(uname -s)" = Linux ] || exit 0
command -v bwrap >/dev/null 2>&1 && exit 0

install="apt-get install -y -qq --no-install-recommends bubblewrap"
if command -v apt-get >/dev/null 2>&1; then
    echo "Installing bubblewrap, in which agents' code runs" >&2
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq && $install >/dev/null && exit 0
    elif sudo -n true 2>/dev/null; then
        sudo -n apt-get update -qq && sudo -n $install >/dev/null && exit 0
    fi
fi
echo "To let agents run code, and to test that, please install bubblewrap 0.8 or newer: sudo apt-get install bubblewrap" >&2
