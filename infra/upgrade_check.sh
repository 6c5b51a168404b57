#!/bin/sh
# Plays an upgrade through: the Khala of an older commit and the one in this tree, side by side on one database, while
# people ask and watch. Usage: infra/upgrade_check.sh COMMIT
#
# Takes a minute or two, and touches nothing but a folder in TMPDIR. By hand, before a release with a migration.
set -eu
commit=${1:?which commit is the old one?}
cd "$(dirname "$0")/.."
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git archive "$commit" app migrations | tar -x -C "$tree"
.venv/bin/python -m tests.support.upgrade "$tree"
