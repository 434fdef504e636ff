#!/bin/sh
# Replays the corpus of heddle.ini.
exec "$HEDDLE_BUILDDIR/replay_ini" "$HEDDLE_SRCDIR/tests/fuzz/corpus/ini"
