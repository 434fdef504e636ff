#!/usr/bin/env bats
# The daemon's life: start, readiness, loss of workers, refusals, the end. The workers are fake
# (tests/proc/fake_worker.c): everything but the model.

load lib
load life
export HEDDLE_WORKER=$HEDDLE_BUILDDIR/fake-worker

@test "it serves when ready, and leaves with 0 and without its socket" {
	daemon_start -s fabric.workers=2
	ask 5
	same "$http" 200
	[[ $body =~ \"completion_tokens\":\ ?5 ]]
	workers=$(workers_of "$PID")
	kill -TERM "$PID"
	left 0
	[ ! -e "$SOCKET" ]
	for pid in $workers; do
		wait_gone "$pid"
	done
}

@test "an idle worker killed: health turns, the group is back, the daemon is the same" {
	FAKE_FAULT=die@0.2:0 daemon_start -s fabric.workers=2
	before=$(workers_of "$PID")
	kill -KILL "${before%% *}"
	until_true log_says 'all 2 workers are ready (generation 3)'
	until_true health_is 200
	kill -0 "$PID"
	for pid in $before; do
		wait_gone "$pid"
	done
	same "$(workers_of "$PID" | wc -w)" 2
	ask 3
	same "$http" 200
}

@test "from the loss of a worker until all are ready again health says 503 and why" {
	# a worker program that waits while there is a file
	printf '#!/bin/sh\nwhile [ -e "%s/hold" ]; do sleep 0.01; done\nexec "%s" "$@"\n' "$D" "$HEDDLE_WORKER" >"$D/late"
	chmod +x "$D/late"
	HEDDLE_WORKER=$D/late daemon_start -s fabric.workers=2
	health_is 200
	touch "$D/hold"
	kill -KILL "$(workers_of "$PID" | cut -d' ' -f2)"
	until_true health_is 503
	get /health
	grep -q 'signal 9' <<<"$body"
	began=$SECONDS
	rm "$D/hold"
	until_true health_is 200
	[ $((SECONDS - began)) -le 10 ]
	log_says 'all 2 workers are ready (generation 2)'
	ask 3
	same "$http" 200
}

@test "a worker killed in a step: the request ends with 503 and a reason, the next one is served" {
	FAKE_FAULT=die@1:4 daemon_start -s fabric.workers=2
	ask 50
	same "$http" 503
	part 'worker 1'
	part 'signal 9'
	until_true health_is 200
	ask 50
	same "$http" 200
}

@test "a worker killed while a stream runs: the stream ends with an error event, not as if done" {
	FAKE_FAULT=die@0:6 daemon_start
	body=$(curl -sN --unix-socket "$SOCKET" -H 'content-type: application/json' -d '{"prompt": "a",
		"max_tokens": 50, "stream": true, "ignore_eos": true}' http://heddle/v1/completions) || true
	part 'worker 0'
	case $body in *'[DONE]'*) false ;; esac
}

@test "a worker stopped in a step is caught by the progress deadline; the log names it" {
	FAKE_FAULT=stop@1:4 daemon_start -s fabric.workers=2 -s fabric.progress_timeout=1500ms
	ask 50
	same "$http" 503
	until_true health_is 200
	log_says 'worker 1 (pid [0-9]*, stopped) made no progress for .* at step 4, layer 3'
	log_says 'layer 3 (fabric.progress_timeout 1.5 s, schedule.step_tokens [0-9]*)'
}

@test "too many restarts: it stays, says 503, and ends with 0 when asked" {
	FAKE_FAULT=die@0.1:3,die@0.2:0 daemon_start -s fabric.max_restarts=1
	ask 50
	same "$http" 503
	until_true log_says 'giving up after 1 restarts'
	reason='worker 0 ended by signal 9 (Killed); giving up after 1 restarts (fabric.max_restarts)'
	get /health
	same "$http" 503
	part "$reason"
	ask 5
	same "$http" 503
	part "$reason"
	get /status
	part "$reason"
	"$HEDDLE_BUILDDIR/heddle" -S "$SOCKET" status | grep -F "$reason"
	kill -TERM "$PID"
	left 0
}

@test "max_restarts = 0: the first loss is the last, and nothing says otherwise" {
	FAKE_FAULT=die@0.1:3 daemon_start -s fabric.max_restarts=0
	ask 50
	same "$http" 503
	until_true log_says 'giving up after 0 restarts'
	ask 5
	part 'giving up after 0 restarts'
	same "$(grep -c 'restarting' "$D/log")" 0
	same "$(grep -c 'gone for good' "$D/log")" 1
	kill -TERM "$PID"
	left 0
}

@test "a worker lost while it shuts down is not replaced" {
	FAKE_STEP_MS=50 daemon_start -s fabric.workers=2 -s api.drain_seconds=60s
	ask_behind 2000
	workers=$(workers_of "$PID")
	kill -TERM "$PID"
	until_true log_says 'SIGTERM: finishing'
	kill -KILL "${workers%% *}"
	left 0
	until_true test -f "$D/asked"
	grep -q '^503 ' "$D/asked"
	same "$(grep -c 'restarting' "$D/log")" 0
	log_says 'signal 9 (Killed); shutting down'
}

@test "a usage error is 64" {
	refused 64 "unknown option -x" -x
	refused 64 "option -c needs FILE" -c
	refused 64 "SECTION.KEY" -s nonsense
}

@test "an unknown key is 78 with file, line and the nearest name" {
	printf '[listen]\nsockt = /x\n' >"$D/bad.ini"
	refused 78 "$D/bad.ini:2:" -c "$D/bad.ini"
	grep -q socket "$D/lines"
}

@test "a configuration that is not there is 66" {
	refused 66 "$D/none.ini" -c "$D/none.ini"
}

@test "a model that is not there is 66" {
	refused 66 "$D/none" -c "$D/heddle.ini" -s model.path="$D/none"
}

@test "what the worker refuses is heddled's own line and code" {
	FAKE_CHECK=65 refused 65 "fake refusal with code 65" -c "$D/heddle.ini"
	FAKE_CHECK=78 refused 78 "fake refusal with code 78" -c "$D/heddle.ini"
	FAKE_FAULT=failed@0:0 refused 65 "the fake shard is damaged" -c "$D/heddle.ini"
	[ ! -e "$SOCKET" ]
}

@test "a refusal of the workers is said once" {
	FAKE_FAULT=failed@0:0 refused 65 "the fake shard is damaged" -c "$D/heddle.ini"
	same "$(grep -c "the fake shard is damaged" "$D/err")" 1
	same "$(grep -c 'gone for good' "$D/err")" 0
}

@test "a worker program that is not there is 66" {
	HEDDLE_WORKER=$D/none refused 66 "$D/none" -c "$D/heddle.ini"
}

@test "-t checks configuration and model and starts nothing" {
	"$HEDDLE_BUILDDIR/heddled" -t -c "$D/heddle.ini" | grep -q fine
	[ ! -e "$SOCKET" ]
	FAKE_CHECK=65 refused 65 "fake refusal" -t -c "$D/heddle.ini"
}

@test "-V and -h say what they should and end with 0" {
	"$HEDDLE_BUILDDIR/heddled" -V | grep -q "^heddled $(cat "$HEDDLE_SRCDIR/VERSION")$"
	"$HEDDLE_BUILDDIR/heddled" -h | grep -q '^usage: heddled'
}

@test "SIGTERM lets a running request finish" {
	FAKE_STEP_MS=40 daemon_start
	ask_behind 60
	kill -TERM "$PID"
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	left 0
}

@test "SIGTERM refuses new requests while old ones finish" {
	FAKE_STEP_MS=40 daemon_start
	ask_behind 100
	kill -TERM "$PID"
	until_true log_says 'SIGTERM: finishing 1 request'
	run -7 curl -sf --max-time 5 --unix-socket "$SOCKET" http://heddle/health # cannot connect
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	left 0
}

@test "api.drain_seconds ends what does not finish" {
	FAKE_STEP_MS=40 daemon_start -s api.drain_seconds=300ms
	ask_behind 20000
	kill -TERM "$PID"
	until_true test -f "$D/asked"
	grep -q '^503 .*shutting down' "$D/asked"
	left 0
}

@test "a body that is still coming when api.drain_seconds end gets 503" {
	daemon_start -s api.drain_seconds=300ms
	mkfifo "$D/body"
	curl -sv -o "$D/asked" -w '%{http_code}' --unix-socket "$SOCKET" -H 'content-type: application/json' \
		-H 'expect: 100-continue' -T - http://heddle/v1/completions -X POST <"$D/body" \
		>"$D/http" 2>"$D/verbose" 3>&- &
	exec 4>"$D/body"
	until_true grep -q '100 Continue' "$D/verbose"
	kill -TERM "$PID"
	until_true log_says 'POST /v1/completions 503 '
	exec 4>&- # curl reads that first, and the answer then
	until_true test -s "$D/http"
	same "$(cat "$D/http")" 503
	grep -q 'shutting down' "$D/asked"
	left 0
}

@test "a second SIGTERM stops at once" {
	FAKE_STEP_MS=40 daemon_start -s fabric.workers=2
	ask_behind 20000
	workers=$(workers_of "$PID")
	kill -TERM "$PID"
	until_true log_says 'SIGTERM: finishing 1 request'
	kill -TERM "$PID"
	left 0 20 # far less than the request would take
	for pid in $workers; do
		wait_gone "$pid"
	done
	[ ! -e "$SOCKET" ]
}

@test "SIGTERM while the workers load ends it" {
	FAKE_FAULT=hang@0:0 daemon_spawn
	until_true log_says 'worker 0: pid'
	kill -TERM "$PID"
	left 0
}

@test "the daemon killed: its workers go with it, and the next one takes the stale socket" {
	daemon_start -s fabric.workers=2
	workers=$(workers_of "$PID")
	same "$(wc -w <<<"$workers")" 2
	kill -KILL "$PID"
	for pid in $workers; do
		wait_gone "$pid"
	done
	[ -S "$SOCKET" ]
	daemon_start
	ask 3
	same "$http" 200
}

@test "two daemons on one socket: the second is refused, the first does not notice" {
	daemon_start
	refused 69 "$SOCKET" -c "$D/heddle.ini"
	ask 3
	same "$http" 200
}

# ---- in the background ----

background()
{
	LOG=$D/heddled.log
	printf '[daemon]\npidfile = %s\n[log]\ntarget = %s\n' "$D/pid" "$LOG" >>"$D/heddle.ini"
}

@test "in the background it returns when ready, with a pidfile" {
	background
	"$HEDDLE_BUILDDIR/heddled" -c "$D/heddle.ini" 3>&-
	PID=$(cat "$D/pid")
	health_is 200
	code=0
	"$HEDDLE_BUILDDIR/heddled" -c "$D/heddle.ini" -s listen.socket="$D/other" 2>"$D/err" 3>&- || code=$?
	same "$code" 69
	grep -q "held by a running daemon, pid $PID" "$D/err"
	kill -TERM "$PID"
	wait_gone "$PID"
	[ ! -e "$D/pid" ]
	log_says 'stopped'
	unset PID
}

@test "in the background a refusal is the caller's exit code and line" {
	background
	code=0
	FAKE_CHECK=65 "$HEDDLE_BUILDDIR/heddled" -c "$D/heddle.ini" 2>"$D/err" 3>&- || code=$?
	same "$code" 65
	same "$(cat "$D/err")" "heddled: fake refusal with code 65"
	log_says 'fake refusal with code 65'
	[ ! -e "$D/pid" ]
	[ ! -e "$SOCKET" ]
}

@test "SIGHUP takes over what it can, names what it cannot, and keeps the old on an error" {
	daemon_start
	printf '[api]\nmax_body = 1K\n[schedule]\nmax_sequences = 3\n' >>"$D/heddle.ini"
	kill -HUP "$PID"
	until_true log_says 'configuration reloaded'
	log_says 'schedule.max_sequences has changed, which takes a restart'
	post /v1/completions "{\"prompt\": \"$(head -c 2000 /dev/zero | tr '\0' a)\"}"
	same "$http" 413
	echo 'nonsense = 1' >>"$D/heddle.ini"
	kill -HUP "$PID"
	until_true log_says 'keeping the old configuration'
	ask 3
	same "$http" 200
}

@test "SIGUSR1 reopens the log" {
	background
	"$HEDDLE_BUILDDIR/heddled" -c "$D/heddle.ini" 3>&-
	PID=$(cat "$D/pid")
	mv "$LOG" "$LOG.1"
	kill -USR1 "$PID"
	until_true test -f "$LOG"
	until_true log_says 'log reopened'
	kill -TERM "$PID"
	wait_gone "$PID"
	unset PID
}

@test "started by root it becomes daemon.user, and the socket is that user's" {
	[ "$(id -u)" = 0 ] || skip "only root can become another user"
	runuser -u nobody -- test -x "$HEDDLE_WORKER" || skip "nobody cannot reach the build"
	chmod 755 "$D"
	daemon_start -s daemon.user=nobody
	same "$(stat -c %U "/proc/$PID")" nobody
	same "$(stat -c %U:%a "$SOCKET")" nobody:660
	same "$(stat -c %G "$SOCKET")" "$(id -gn nobody)"
	for pid in $(workers_of "$PID"); do
		same "$(stat -c %U "/proc/$pid")" nobody
	done
	ask 3
	same "$http" 200
}

@test "a socket in a directory of root's: said at the start and the end, replaced by the next start" {
	[ "$(id -u)" = 0 ] || skip "only root can become another user"
	runuser -u nobody -- test -x "$HEDDLE_WORKER" || skip "nobody cannot reach the build"
	chmod 755 "$D"
	for i in 1 2; do
		daemon_start -s daemon.user=nobody -s daemon.pidfile="$D/pid"
		log_says "warning heddled: listen: listen.socket: $SOCKET will be left behind at the end"
		kill -TERM "$PID"
		left 0
		log_says "$SOCKET is left behind"
		log_says "daemon.pidfile: $D/pid is emptied"
		[ -S "$SOCKET" ] && [ ! -s "$D/pid" ]
	done
	mkdir "$D/run" && chown nobody "$D/run"
	SOCKET=$D/run/s
	daemon_start -s daemon.user=nobody -s listen.socket="$SOCKET"
	kill -TERM "$PID"
	left 0
	[ ! -e "$SOCKET" ]
	same "$(grep -c 'left behind' "$D/log")" 0
}

@test "a user that does not exist is 78" {
	refused 78 'no user nonesuch' -c "$D/heddle.ini" -s daemon.user=nonesuch
}

# ---- what the log is written to

# drain_fifo: reads what is in the FIFO $D/fifo by now into $D/log
drain_fifo()
{
	timeout 1 cat <&8 >>"$D/log" || true
}

@test "stderr is a pipe that nobody reads: it serves, reloads and stops, and says what was lost" {
	mkfifo "$D/fifo"
	exec 8<>"$D/fifo" # holds the reading side open, unread
	"$HEDDLE_BUILDDIR/heddled" -f -c "$D/heddle.ini" -s log.level=debug 2>"$D/fifo" >/dev/null 3>&- 8>&- &
	PID=$!
	until_true health_is 200
	timeout 2 yes "a line of somebody else, who shares the pipe" >"$D/fifo" || true # until it is full
	ask 3
	same "$http" 200
	kill -HUP "$PID"
	ask 3
	same "$http" 200
	drain_fifo
	ask 3
	until_true eval 'drain_fifo; log_says "[0-9][0-9]* lines before this one were lost"'
	timeout 2 yes "a line of somebody else, who shares the pipe" >"$D/fifo" || true
	kill -TERM "$PID"
	left 0
	[ ! -e "$SOCKET" ]
	exec 8>&-
}

@test "log.target is a FIFO: without a reader it is 78 at once, with one it serves" {
	mkfifo "$D/fifo"
	refused 78 "log.target: $D/fifo is a FIFO that nobody reads" -c "$D/heddle.ini" -s log.target="$D/fifo"
	[ ! -e "$SOCKET" ]
	exec 8<>"$D/fifo"
	daemon_spawn -s log.target="$D/fifo"
	until_true health_is 200
	kill -TERM "$PID"
	left 0
	drain_fifo
	log_says 'stopped'
	exec 8>&-
}

@test "a log that may not grow (ulimit -f) does not end it" {
	truncate -s 64M "$D/big"
	(
		ulimit -S -f 65536 # the segments are files too
		exec "$HEDDLE_BUILDDIR/heddled" -f -c "$D/heddle.ini" -s log.level=debug -s log.target="$D/big" \
			2>"$D/log" 3>&-
	) &
	PID=$!
	until_true eval 'health_is 200 || ! kill -0 "$PID"'
	kill -0 "$PID"
	ask 3
	same "$http" 200
	same "$(stat -c %s "$D/big")" $((64 << 20))
	mv "$D/big" "$D/log"
	kill -USR1 "$PID"
	until_true log_in "$D/big" 'lines before this one were lost'
	kill -TERM "$PID"
	left 0
}

log_in()
{
	grep -qs -- "$2" "$1"
}

@test "a file size limit that shared memory does not fit into is 71 and named" {
	ulimit -S -f 4
	refused 71 'ulimit -f' -c "$D/heddle.ini"
	[ ! -e "$SOCKET" ]
}

@test "too few open files are 71, and the line says how many are needed" {
	for n in 24 40 64 76; do
		(
			ulimit -n $n
			refused 71 "the limit of open files is $n (ulimit -n, LimitNOFILE=): 81 are needed with 2 workers" \
				-c "$D/heddle.ini" -s fabric.workers=2
		)
	done
	[ ! -e "$SOCKET" ]
	(
		ulimit -n 64
		refused 71 "the limit of open files is 64" -t -c "$D/heddle.ini"
	)
	ulimit -n 81
	daemon_start -s fabric.workers=2
	ask 3
	same "$http" 200
}

@test "a small stack is raised, or 71 where it must not be" {
	(
		ulimit -s 64
		refused 71 "the stack limit is 64 KiB" -c "$D/heddle.ini"
		refused 71 "the stack limit is 64 KiB" -t -c "$D/heddle.ini"
	)
	ulimit -S -s 64
	daemon_start
	ask 3
	same "$http" 200
}
