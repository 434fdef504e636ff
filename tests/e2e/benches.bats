#!/usr/bin/env bats
# How benches end when they are asked for what they do not do, or get too little memory: with one line.
# What they measure is no test's.

benches="allreduce handoff kernels load model step stream"

setup()
{
	D=$(mktemp -d)
	export HEDDLE_BENCH_DIR=$D TMPDIR=$D
	cd "$HEDDLE_BUILDDIR"
}

teardown()
{
	rm -rf "$D"
}

# misused BENCH ARG...: one line of usage and nothing else, and status 64
misused()
{
	local status=0
	"./bench_$1" "${@:2}" >"$D/out" 2>"$D/err" || status=$?
	echo "$*: $status"
	cat "$D/err"
	[ "$status" -eq 64 ]
	[ ! -s "$D/out" ]
	[ "$(wc -l <"$D/err")" -eq 1 ]
	grep -q "^usage: bench_$1" "$D/err"
	[ ! -e "$D/$1.json" ]
}

@test "wrong arguments of a bench get one line of usage and status 64" {
	for b in $benches; do
		misused "$b" --nosuch
	done
	misused allreduce 2
	misused handoff 2
	misused stream 2
	misused kernels auto 0
	misused kernels auto 2x
	misused kernels auto 2 2
	misused model 0
	misused model 65
	misused model -1
	misused model 2 2
	misused step 0
	misused step 1 257
	misused step one
	misused load "$D/c" nosuch
	misused load --make
}

@test "wrong arguments of the benches in Python get one line of usage and status 64" {
	run python3 "$HEDDLE_SRCDIR/tests/bench/bench_memory.py" --nosuch
	[ "$status" -eq 64 ]
	[ "${#lines[@]}" -eq 1 ]
	[[ $output == usage:* ]]
}

# short BENCH KIB: with so little memory it ends with one line (127: the dynamic loader's), or it gets by and
# is stopped; neither leaves JSON
short()
{
	local status=0
	(ulimit -v "$2" && timeout -k 5 1 "./bench_$1") >"$D/out" 2>"$D/err" || status=$?
	echo "$1, $2 KiB: $status"
	cat "$D/err"
	case $status in
	71 | 127) [ "$(wc -l <"$D/err")" -eq 1 ] ;;
	*) [ "$status" -eq 124 ] ;;
	esac
	[ -z "$(find "$D" -name '*.json*')" ]
}

@test "too little memory ends a bench with one line that says so" {
	grep -q '^SAN_CFLAGS = .*-fsanitize' Makefile && skip "a sanitizer's own memory has no limit"
	for kib in 12000 30000 50000; do
		for b in allreduce kernels model stream; do
			short "$b" "$kib"
		done
	done
	short handoff 16000 # with more, libzmq aborts in its own words
}
