#!/bin/sh
# Replays the corpora of the tokenizer, the chat format and completions.
set -e
for t in tokenizer chat dsml; do
    "$HEDDLE_BUILDDIR/replay_$t" "$HEDDLE_SRCDIR/tests/fuzz/corpus/$t"
done
