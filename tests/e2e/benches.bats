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
	misused kernels nosuch
	misused kernels ""
	misused kernels auto 0
	misused kernels auto " 2"
	misused kernels auto +2
	misused kernels auto ""
	misused kernels auto 2x
	misused kernels auto 2 2
	misused model 0
	misused model 65
	misused model -1
	misused model 2 2
	misused step 0
	misused step 1 257
	misused step one
	misused load "$D" nosuch
	misused load "$D/c"
	misused load "$D/c" cache
	misused load "$D/out"
	[ ! -e "$D/c" ]
	misused load --make
}

@test "wrong arguments of the benches in Python get one line of usage and status 64" {
	run python3 "$HEDDLE_SRCDIR/tests/bench/bench_memory.py" --nosuch
	[ "$status" -eq 64 ]
	[ "${#lines[@]}" -eq 1 ]
	[[ $output == usage:* ]]
}

# stopped SIGNAL DIR ARG...: bench_load stopped while it makes its checkpoint in DIR
stopped()
{
	local status=0 pid
	./bench_load "${@:3}" >"$D/out" 2>"$D/err" &
	pid=$!
	until compgen -G "$2/model-00001-of-*" >/dev/null; do
		kill -0 "$pid"
	done
	kill -"$1" "$pid"
	wait "$pid" || status=$?
	echo "$*: $status"
	[ "$status" -gt 128 ]
	grep -q "stopped by a signal" "$D/out"
	[ -z "$(find "$D" -type f ! -name out ! -name err)" ]
}

@test "bench_load that is stopped removes the part of a checkpoint it made" {
	stopped TERM "$D/heddle-bench-load.*"
	mkdir "$D/here"
	stopped INT "$D/here" "$D/here" cache
	[ -d "$D/here" ] # which it did not make
	stopped HUP "$D/made" --make "$D/made"
	[ ! -e "$D/made" ]
}

@test "bench_load does not write over another model's files" {
	mkdir "$D/other"
	echo '{"another": "model"}' >"$D/other/config.json"
	run ./bench_load "$D/other"
	[ "$status" -eq 77 ]
	[ "${#lines[@]}" -eq 1 ]
	grep -q another "$D/other/config.json"
	mv "$D/other/config.json" "$D/other/model-00002-of-00004.safetensors"
	run ./bench_load --make "$D/other"
	[ "$status" -eq 77 ]
	[ "$(ls "$D/other")" = model-00002-of-00004.safetensors ]
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
