#!/bin/bash
# run.sh SECONDS TARGET...: runs fuzz targets of this build directory, one after the other, each for
# so long; run.sh merge TARGET...: adds what they found to the committed corpora. By make fuzz.
set -e
: "${HEDDLE_SRCDIR:?}" "${HEDDLE_BUILDDIR:?}"
export HEDDLE_SRCDIR
what=$1
shift
failed=
for t in "$@"; do
    corpus=$HEDDLE_SRCDIR/tests/fuzz/corpus/$t
    work=$HEDDLE_BUILDDIR/fuzz-work
    mkdir -p "$work/$t"
    if [ "$what" = merge ]; then
        "$HEDDLE_BUILDDIR/fuzz_$t" -merge=1 -use_counters=0 -max_len=4096 "$corpus" "$work/$t" \
            2>"$work/$t.merge.log"
        echo "$t: $(find "$corpus" -type f | wc -l) inputs, $(cat "$corpus"/* | wc -c) bytes"
        continue
    fi
    if "$HEDDLE_BUILDDIR/fuzz_$t" -max_total_time="$what" -max_len=16384 -rss_limit_mb=3000 \
        -timeout=60 -artifact_prefix="$work/fail-$t-" "$work/$t" "$corpus" 2>"$work/$t.log"; then
        grep -a '^Done' "$work/$t.log" | sed "s/^/$t: /"
    else
        failed="$failed $t"
        tail -40 "$work/$t.log"
    fi
done
[ -z "$failed" ] || { echo "found something:$failed"; exit 1; }
