#!/bin/sh
# Checks tests/model/bell.pml with spin: the model as it is must hold, and each of the models with a
# part left out must fail as it should, or the model shows nothing.
set -u

SRC=${HEDDLE_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
if ! command -v spin >/dev/null 2>&1; then
	echo "skipped: spin is not installed"
	exit 77
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# verify FLAGS: exits 0 when the search was complete, prints pan's summary
verify()
{
	spin -a "$@" "$SRC/tests/model/bell.pml" >spin.log 2>&1 || { cat spin.log; exit 1; }
	${CC:-cc} -O1 -w -DSAFETY -DMEMLIM=1024 -o pan pan.c || exit 1
	./pan -m1000000 >pan.log 2>&1
	grep -E "^pan:1|errors:|states, stored" pan.log
	if grep -q "max search depth too small\|out of memory\|memory limit" pan.log; then
		cat pan.log
		exit 1
	fi
}

failed=0
holds()
{
	echo "model $*: must hold"
	verify "$@"
	grep -q "errors: 0" pan.log || { cat pan.log; failed=1; }
}
loses()
{
	echo "model $*: must lose a wake-up"
	verify "$@"
	grep -q "invalid end state" pan.log || { cat pan.log; failed=1; }
}

lies()
{
	echo "model $*: must take old bytes for a record"
	verify "$@"
	grep -q "assertion violated" pan.log || { cat pan.log; failed=1; }
}

holds -DR=1 -DN=4 -DCAP=2
holds -DR=2 -DN=2 -DCAP=1
loses -DR=1 -DN=3 -DCAP=2 -DNO_SLEEPER_FENCE
loses -DR=1 -DN=3 -DCAP=2 -DNO_WAKER_FENCE
loses -DR=1 -DN=3 -DCAP=1 -DNO_DEBT
lies -DR=1 -DN=3 -DCAP=2 -DNO_CLEAR
exit $failed
