#!/usr/bin/env bats
# heddled as its service manager sees it: readiness, life signs, reload, handed-over sockets, rotated
# logs. The managers themselves are in init_systemd.bats, init_sysv.bats and init_openrc.bats.

load lib
load life
load init

export HEDDLE_WORKER=$HEDDLE_BUILDDIR/fake-worker

# manager [ARG...]: a daemon that has somebody to tell; what it tells lands in $D/told
manager()
{
	python3 "$HEDDLE_SRCDIR/tests/e2e/notify_listen.py" "$D/notify" "$D/told" 3>&- &
	LISTENER=$!
	until_true test -S "$D/notify"
	NOTIFY_SOCKET=$D/notify daemon_spawn "$@"
}

teardown_manager()
{
	[ -z "${LISTENER-}" ] || kill "$LISTENER"
}

told()
{
	grep -q -- "$1" "$D/told"
}

# more_often PATTERN N: it was told more than N times
more_often()
{
	[ "$(grep -c -- "$1" "$D/told")" -gt "$2" ]
}

@test "it tells its manager when it is ready, that it lives, that it reloads, that it stops" {
	WATCHDOG_USEC=200000 manager
	until_true told '^READY=1 STATUS=serving$'
	until_true more_often '^WATCHDOG=1$' 4
	kill -HUP "$PID"
	until_true told '^RELOADING=1 MONOTONIC_USEC=[0-9]*$'
	until_true more_often '^READY=1 STATUS=serving$' 1
	kill -TERM "$PID"
	left 0
	told '^STOPPING=1 STATUS=finishing requests$'
	teardown_manager
}

@test "a reload that is refused stands in its status, with file and line, until the next" {
	manager
	until_true told '^READY=1'
	echo 'nonsense = 1' >>"$D/heddle.ini"
	kill -HUP "$PID"
	until_true told "^READY=1 STATUS=serving; not reloaded: $D/heddle.ini:5: "
	log_says "reload: $D/heddle.ini:5: .*keeping the old configuration"
	sed -i '$d' "$D/heddle.ini"
	kill -HUP "$PID"
	until_true more_often '^READY=1 STATUS=serving$' 1
	ask 3
	same "$http" 200
	teardown_manager
}

@test "while its workers load it asks for more time, and a reload does not make it ready" {
	FAKE_FAULT=hang@0:0 WATCHDOG_USEC=200000 manager
	until_true more_often '^EXTEND_TIMEOUT_USEC=300000$' 3
	kill -HUP "$PID"
	until_true log_says 'configuration reloaded'
	kill -TERM "$PID"
	left 0
	never told READY=1
	never told RELOADING=1
	teardown_manager
}

@test "ready, it asks for no more time; while requests finish it does again" {
	FAKE_STEP_MS=10 WATCHDOG_USEC=200000 manager
	until_true told '^READY=1'
	before=$(grep -c '^EXTEND_TIMEOUT_USEC' "$D/told") || true
	until_true more_often '^WATCHDOG=1$' $(($(grep -c '^WATCHDOG=1$' "$D/told") + 3))
	same "$(grep -c '^EXTEND_TIMEOUT_USEC' "$D/told" || true)" "$before"
	ask_behind 150
	kill -TERM "$PID"
	until_true more_often '^EXTEND_TIMEOUT_USEC' $((before + 3))
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	left 0
	teardown_manager
}

@test "what was meant for it does not reach its workers" {
	WATCHDOG_USEC=200000 manager
	until_true told '^READY=1'
	for pid in $(workers_of "$PID"); do
		tr '\0' '\n' <"/proc/$pid/environ" >"$D/environ"
		never grep -E 'NOTIFY_SOCKET|WATCHDOG|LISTEN_' "$D/environ"
	done
	teardown_manager
}

@test "a socket handed over is served, and left where it is at the end" {
	command -v systemd-socket-activate >/dev/null || skip "systemd-socket-activate is not installed"
	HEDDLE_WORKER=$HEDDLE_WORKER systemd-socket-activate -l "$SOCKET" -E HEDDLE_WORKER \
		"$HEDDLE_BUILDDIR/heddled" -f -c "$D/heddle.ini" -s listen.socket="$D/unused" \
		>"$D/log" 2>&1 3>&- &
	PID=$!
	until_true test -S "$SOCKET"
	ask 3 # the first connection starts it; it is served when the workers are ready, or told 503
	until_true health_is 200
	ask 3
	same "$http" 200
	log_says "listening on $SOCKET"
	[ ! -e "$D/unused" ]
	kill -TERM "$PID"
	left 0
	[ -S "$SOCKET" ]
}

@test "a handed-over descriptor that is no listening socket is 78" {
	code=0
	# exec, because LISTEN_PID must be the daemon's own
	HEDDLE_WORKER=$HEDDLE_WORKER bash -c 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3</dev/null' - \
		"$HEDDLE_BUILDDIR/heddled" -f -c "$D/heddle.ini" 2>"$D/err" || code=$?
	same "$code" 78
	grep -q 'LISTEN_FDS: descriptor 3 is not a listening stream socket' "$D/err"
}

locked()
{
	! flock -n "$D" true
}

@test "a reload asked for before it can read signals is done, not died of" {
	# while it waits for the lock on the socket's directory it stands still, its pidfile written
	mkfifo "$D/until"
	flock "$D" cat "$D/until" 3>&- &
	until_true locked
	printf '[daemon]\npidfile = %s\n' "$D/pid" >>"$D/heddle.ini"
	daemon_spawn
	until_true test -s "$D/pid"
	kill -HUP "$PID"
	kill -USR1 "$PID"
	[ ! -e "$SOCKET" ]
	: >"$D/until"
	daemon_ready
	until_true log_says 'configuration reloaded'
}

@test "a refusal is on stderr and in the log" {
	printf '[log]\ntarget = %s\n' "$D/heddled.log" >>"$D/heddle.ini"
	FAKE_CHECK=65 refused 65 "fake refusal with code 65" -c "$D/heddle.ini"
	LOG=$D/heddled.log log_says 'error heddled: main: fake refusal with code 65'
}

@test "levels are the journal's only when stderr is the journal" {
	# another socket's name, as in a terminal started by the user's manager
	JOURNAL_STREAM=1:1 daemon_start
	log_says '^[0-9-]*T.* notice heddled: '
	never log_says '^<[0-9]>'
}

@test "stderr that is the journal gets levels and no times" {
	python3 - "$D" "$HEDDLE_BUILDDIR/heddled" <<-'PY' 3>&- &
		import os, socket, sys
		a, b = socket.socketpair()
		st = os.fstat(b.fileno())
		os.environ["JOURNAL_STREAM"] = "%d:%d" % (st.st_dev, st.st_ino)
		d, heddled = sys.argv[1:]
		if os.fork() == 0:
		    os.dup2(b.fileno(), 2)
		    os.execl(heddled, "heddled", "-f", "-c", d + "/heddle.ini")
		b.close()
		with open(d + "/log", "wb", buffering=0) as log:
		    while data := a.recv(65536):
		        log.write(data)
	PY
	PID=$!
	until_true health_is 200
	log_says '^<5>heddled: main: serving$'
	kill -TERM "$(pgrep -P "$PID")"
	wait_gone "$PID"
	never log_says '^[^<]'
}

@test "after a rotation and SIGUSR1 daemon and workers write to the new file" {
	unset HEDDLE_WORKER # the real one: it is its log that counts
	LOG=$D/heddled.log
	printf '[log]\ntarget = %s\nlevel = debug\n' "$LOG" >>"$D/heddle.ini"
	daemon_start -s fabric.workers=2
	log_says 'worker 1: serve: ready in'
	mv "$LOG" "$LOG.1"
	kill -USR1 "$PID"
	until_true log_says 'log reopened'
	kill -TERM "$PID"
	left 0
	log_says 'worker 0: serve: stopped'
	log_says 'worker 1: serve: stopped'
	never grep -q stopped "$LOG.1"
}

@test "a log that cannot be reopened is kept" {
	LOG=$D/logs/heddled.log
	mkdir "$D/logs"
	printf '[log]\ntarget = %s\n' "$LOG" >>"$D/heddle.ini"
	daemon_start
	mv "$D/logs" "$D/moved"
	kill -USR1 "$PID"
	LOG=$D/moved/heddled.log until_true log_says "cannot open $LOG: .*; still writing to the old file"
	ask 3
	same "$http" 200
}
