#!/bin/sh
# Replays the corpora of the tokenizer and the chat format.
set -e
for t in tokenizer chat; do
    "$HEDDLE_BUILDDIR/replay_$t" "$HEDDLE_SRCDIR/tests/fuzz/corpus/$t"
done
