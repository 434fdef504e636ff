#!/bin/sh
# storm.sh [full]: random and damaged requests, then many connections and streams, against a daemon of
# this build. make check runs the short form, make storm the full one. See README.md.
: "${HEDDLE_BUILDDIR:?}" "${HEDDLE_SRCDIR:?}"
here=$HEDDLE_SRCDIR/tests/storm
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
[ -x "$HEDDLE_BUILDDIR/heddle-worker" ] || { echo "skipped: heddle-worker is not built"; exit 77; }
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
set -e
if [ "$1" = full ]; then
    python3 "$here/storm.py" --count "${STORM_COUNT:-200000}" ${STORM_SEED:+--seed "$STORM_SEED"}
    python3 "$here/streams.py" --connections 2000 --streams 256 --rounds 16 --prompts 24
elif [ -n "$HEDDLE_TEST_SUBSET" ]; then
    python3 "$here/storm.py" --count 600
    python3 "$here/streams.py" --connections 100 --streams 16 --prompts 3
else
    python3 "$here/storm.py" --count 2000
    python3 "$here/streams.py" --connections 200 --streams 32 --prompts 6
fi
