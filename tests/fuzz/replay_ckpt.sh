#!/bin/sh
# Replays the corpora of the checkpoint's parsers.
set -e
for t in safetensors config; do
    "$HEDDLE_BUILDDIR/replay_$t" "$HEDDLE_SRCDIR/tests/fuzz/corpus/$t"
done
