#!/usr/bin/env bats
# The daemon's life with real workers on the bundled model: what life.bats does with fake ones,
# where the model makes a difference.

load lib
load life
export HEDDLE_WORKER=$HEDDLE_BUILDDIR/heddle-worker

setup_file()
{
	[ -x "$HEDDLE_WORKER" ] || skip "heddle-worker is not built"
	[ -f "$HEDDLE_SRCDIR/models/heddle-mini/config.json" ] || skip "the bundled model is not here"
}

# answer_of TEXT: the ids a greedy completion gives
greedy()
{
	post /v1/completions "{\"prompt\": \"The secret code of Bruno is 4492.\", \"max_tokens\": 8,
		\"temperature\": 0, \"ignore_eos\": true, \"return_token_ids\": true}"
	same "$http" 200
	ids=$(grep -o '"token_ids": *\[[^]]*\]' <<<"$body")
}

# prompt_behind: a prompt of seconds in the background; its status lands in $D/asked
prompt_behind()
{
	printf '{"prompt": [0%s], "max_tokens": 1}' "$(printf ',%d' {1..3999} {1..3999} {1..3999} {1..3999})" >"$D/prompt"
	(
		post /v1/completions "$(cat "$D/prompt")" && echo "$http $body" >"$D/asked.tmp"
		mv "$D/asked.tmp" "$D/asked"
	) 3>&- &
	until_true steps_run
}

@test "workers killed idle, in a prompt, in an answer, and stopped: the answers after are the same" {
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=3s
	greedy
	first=$ids
	[ -n "$first" ]
	pid=$PID

	kill -KILL "$(workers_of "$PID" | cut -d' ' -f1)"
	until_true log_says 'all 2 workers are ready (generation 2)'
	until_true health_is 200
	greedy
	same "$ids" "$first"

	ask_behind 30000
	kill -KILL "$(workers_of "$PID" | cut -d' ' -f2)"
	until_true test -f "$D/asked"
	grep -q '^503 .*signal 9' "$D/asked"
	until_true health_is 200
	greedy
	same "$ids" "$first"

	rm "$D/asked"
	prompt_behind
	kill -KILL "$(workers_of "$PID" | cut -d' ' -f1)"
	until_true test -f "$D/asked"
	grep -q '^503 .*signal 9' "$D/asked"
	log_says 'failed with 503 after 0 tokens'
	until_true health_is 200
	greedy
	same "$ids" "$first"

	rm "$D/asked"
	ask_behind 30000
	kill -STOP "$(workers_of "$PID" | cut -d' ' -f2)"
	until_true test -f "$D/asked"
	grep -q '^503 .*stopped) made no progress' "$D/asked"
	until_true health_is 200
	greedy
	same "$ids" "$first"

	same "$PID" "$pid"
	workers=$(workers_of "$PID")
	kill -KILL "$PID"
	for pid in $workers; do
		wait_gone "$pid"
	done
}

# clock ticks of CPU time that the workers have used
ticks()
{
	local p

	for p in $(workers_of "$PID"); do cut -d' ' -f14,15 "/proc/$p/stat"; done |
		awk '{ n += $1 + $2 } END { print n }'
}

# Prints CPU times of long prompts, one after the other, with a daemon that has seen only short ones.
long_prompts()
{
	local i n had

	# beyond the window and what the indexer's top-k takes whole
	n=$(awk 'BEGIN { for (i = 0; i < 2300; i++) printf "%s%d", i ? "," : "", 7 + i * 37 % 4000 }')
	unset D # a directory of its own: it goes with the daemon
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=300s
	greedy
	for i in 1 2 3 4; do
		had=$(ticks)
		post /v1/completions "{\"prompt\": [$n], \"max_tokens\": 2, \"ignore_eos\": true}"
		same "$http" 200
		echo $(($(ticks) - had))
	done
	daemon_stop
}

# Others' load makes CPU time unsteady, so only three daemons with the same fault are one.
@test "the first long prompt costs no more than the next: nothing is made only when it is needed" {
	local i said

	for i in 1 2 3; do
		said=$(long_prompts | tr '\n' ' ')
		echo "ticks: $said"
		awk '{ most = $2; for (i = 3; i <= 4; i++) if ($i > most) most = $i
			exit !($1 > 0 && $1 <= 1.2 * most + 2) }' <<<"$said" && return
	done
	return 1
}

@test "signals that go astray to a worker change nothing" {
	daemon_start -s fabric.workers=2
	ask_behind 300
	for s in HUP INT QUIT PIPE ALRM TERM USR1 USR2 STKFLT URG TSTP TTIN TTOU XFSZ VTALRM PROF WINCH IO \
		PWR RTMIN RTMAX-1 RTMAX; do
		kill -s $s $(workers_of "$PID")
	done
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	greedy
	log_says 'all 2 workers are ready (generation 1)'
	same "$(workers_of "$PID" | wc -w)" 2
	same "$(grep -c 'generation 2' "$D/log")" 0
}

@test "a stack of 1 MiB (ulimit -s) is enough, for prompts and deep JSON too" {
	ulimit -s 1024
	daemon_start -s fabric.workers=2
	greedy
	post /v1/completions "{\"prompt\": $(printf '[%.0s' {1..2040})1$(printf ']%.0s' {1..2040}), \"max_tokens\": 1}"
	same "$http" 400
	ask 40
	same "$http" 200
}

@test "a worker's stacks are its own, whatever ulimit -s says" {
	printf '#!/bin/sh\nulimit -s 64\nexec "%s" "$@"\n' "$HEDDLE_WORKER" >"$D/worker"
	chmod 755 "$D/worker"
	HEDDLE_WORKER=$D/worker daemon_start -s fabric.workers=2 -s fabric.threads=2
	greedy
	ask 40
	same "$http" 200
	log_says 'all 2 workers are ready (generation 1)'
}

@test "SIGTERM lets a real request finish and the workers leave by themselves" {
	daemon_start -s fabric.workers=2 -s log.level=debug
	ask_behind 100
	kill -TERM "$PID"
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	left 0
	log_says 'worker 0: stopped'
	log_says 'worker 1: stopped'
}

@test "-t accepts the bundled model and refuses what cannot run, naming it" {
	"$HEDDLE_BUILDDIR/heddled" -t -c "$D/heddle.ini" | grep -q fine
	refused 78 workers -t -c "$D/heddle.ini" -s fabric.workers=3
	refused 66 "$D/none" -t -c "$D/heddle.ini" -s model.path="$D/none"
}

@test "a damaged checkpoint is 65, by file, before anything is served" {
	mkdir "$D/model"
	cp "$HEDDLE_SRCDIR"/models/heddle-mini/*.json "$HEDDLE_SRCDIR"/models/heddle-mini/*.safetensors "$D/model"
	chmod -R u+w "$D/model"
	truncate -s -1 "$D/model/model-00002-of-00002.safetensors"
	refused 65 model-00002-of-00002.safetensors -c "$D/heddle.ini" -s model.path="$D/model"
	[ ! -e "$SOCKET" ]
}

@test "one step as long as a prompt is no silence, though a layer takes longer than progress_timeout" {
	[ -n "${HEDDLE_TEST_FULL-}" ] || skip "takes a minute: make check-full (test_beat counts the same)"
	daemon_start -s schedule.step_tokens=20000 -s cache.memory=2G
	printf '[fabric]\nprogress_timeout = 3s\n' >>"$D/heddle.ini"
	kill -HUP "$PID"
	until_true log_says 'configuration reloaded'
	printf '{"prompt": [0%s], "max_tokens": 1}' "$(printf ',%d' {1..3999} {1..3999} {1..3999} {1..3999} {1..3999})" >"$D/prompt"
	post /v1/completions "$(cat "$D/prompt")"
	same "$http" 200
	log_says 'all 1 workers are ready (generation 1)'
	same "$(grep -c 'made no progress' "$D/log")" 0
}

@test "a pause of everything, longer than progress_timeout, costs nothing" {
	[ -n "${HEDDLE_TEST_FULL-}" ] || skip "takes ten seconds: make check-full (test_comm has the worker's part)"
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=2s
	ask_behind 3000
	kill -STOP "$PID" $(workers_of "$PID")
	sleep 7 # what is tested is time that passes
	kill -CONT $(workers_of "$PID") "$PID"
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	same "$(grep -c 'generation 2' "$D/log")" 0
}

# long N: a prompt of its own and an answer that, together, end beyond a page of the class compressed by 128
long()
{
	printf '{"prompt": [%d%s], "max_tokens": 1100, "ignore_eos": true, "temperature": 0.8, "seed": 3,
		"frequency_penalty": 0.2, "return_token_ids": true}' \
		"$1" "$(printf ',%d' {1..3600} {1..3550})" >"$D/long$1"
	post /v1/completions "$(cat "$D/long$1")"
	same "$http" 200
	grep -o '"token_ids": *\[[^]]*\]' <<<"$body" >"$D/ids$1.tmp"
	mv "$D/ids$1.tmp" "$D/ids$1"
}

@test "an answer that gave way to an older one is the same as alone" {
	[ -n "${HEDDLE_TEST_FULL-}" ] || skip "takes half a minute: make check-full (test_sched has the scheduler's part)"
	daemon_start -s cache.memory=17M -s schedule.max_context=16384 -s schedule.max_sequences=2
	long 7 3>&- &
	long 8
	until_true test -f "$D/ids7"
	"$HEDDLE_BUILDDIR/heddle" -S "$SOCKET" status --json | grep -q '"preempted":1[,}]'
	mv "$D/ids7" "$D/first7"
	mv "$D/ids8" "$D/first8"
	long 7
	long 8
	cmp "$D/ids7" "$D/first7"
	cmp "$D/ids8" "$D/first8"
	[ "$(grep -o , "$D/ids8" | wc -l)" -eq 1099 ]
}
