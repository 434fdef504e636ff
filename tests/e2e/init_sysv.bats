#!/usr/bin/env bats
# The System V script: every action and LSB exit code, with fake workers, as whoever runs the tests and
# with all its paths in $D; then once for real, as root in a machine of its own.

load lib
load life
load init
load machine

setup()
{
	daemon_dir
	export HEDDLE_WORKER=$HEDDLE_BUILDDIR/fake-worker
	unset FAKE_FAULT FAKE_CHECK FAKE_STEP_MS
	cat >"$D/default" <<-SH
		DAEMON=$HEDDLE_BUILDDIR/heddled
		CLIENT=$HEDDLE_BUILDDIR/heddle
		PIDFILE=$D/pid
		HEDDLED_USER=
		HEDDLED_OPTS="-c $D/heddle.ini -s log.target=$D/log"
	SH
	sed "s|^DEFAULTS=.*|DEFAULTS=$D/default|" "$HEDDLE_BUILDDIR/etc/heddle.sysv" >"$D/heddle"
	chmod +x "$D/heddle"
}

teardown()
{
	machine_stop
	PID=$(cat "$D/pid" 2>/dev/null) || PID=
	if [ -n "$PID" ] && [ "$(cat "/proc/$PID/comm" 2>/dev/null)" = heddled ]; then
		kill -KILL "$PID"
		wait_gone "$PID"
	fi
	[ -n "${BATS_TEST_COMPLETED-}" ] || cat "$D/log" "$D/said" 2>/dev/null || :
	daemon_clean
}

# script CODE ACTION: runs it by each shell that may be /bin/sh, and compares the exit code
script()
{
	local want=$1 code=0

	shift
	"${SH_BY-sh}" "$D/heddle" "$@" >"$D/said" 2>&1 3>&- || code=$?
	same "$code" "$want"
}

said()
{
	grep -q -- "$1" "$D/said" || same "$(cat "$D/said")" "$1"
}

@test "the shells that may be sh take it" {
	for sh in dash bash 'busybox sh'; do
		command -v ${sh%% *} >/dev/null || continue
		$sh -n "$HEDDLE_BUILDDIR/etc/heddle.sysv"
	done
}

@test "it has LSB's header, with the fields that are asked for" {
	sed -n '/^### BEGIN INIT INFO$/,/^### END INIT INFO$/p' "$HEDDLE_BUILDDIR/etc/heddle.sysv" >"$D/lsb"
	for field in Provides Required-Start Required-Stop Default-Start Default-Stop \
		Short-Description Description; do
		same "$(grep -c "^# $field: *[^ ]" "$D/lsb")" 1
	done
	same "$(tail -n 1 "$D/lsb")" '### END INIT INFO'
}

@test "start, status, reload, restart, stop, and each of them again" {
	script 3 status
	said 'not running'
	script 7 reload
	script 0 stop
	script 0 start
	said started
	health_is 200
	first=$(cat "$D/pid")
	script 0 start
	said "already running, pid $first"
	script 0 status
	said "running, pid $first"
	script 0 reload
	until_true log_says 'configuration reloaded'
	script 0 force-reload
	script 0 restart
	second=$(cat "$D/pid")
	[ "$first" != "$second" ]
	health_is 200
	script 0 try-restart
	[ "$second" != "$(cat "$D/pid")" ]
	script 0 stop
	said stopped
	[ ! -e "$D/pid" ]
	[ ! -e "$SOCKET" ]
	script 3 status
	script 0 try-restart
	script 3 status
}

@test "dash runs it as well" {
	command -v dash >/dev/null || skip "dash is not installed"
	SH_BY=dash
	script 0 start
	script 0 status
	script 0 reload
	script 0 restart
	script 0 stop
	script 3 status
}

@test "killed: status says dead, start takes over the pidfile" {
	script 0 start
	pid=$(cat "$D/pid")
	kill -KILL "$pid"
	wait_gone "$pid"
	script 1 status
	said "names pid $pid"
	script 7 reload
	script 0 start
	health_is 200
	script 0 stop
}

@test "a pidfile that names another process is not believed" {
	sleep 600 3>&- &
	echo $! >"$D/pid"
	script 1 status
	script 0 stop
	kill -0 $! # it was none of ours to stop
	[ ! -e "$D/pid" ]
	printf 'rubbish\n' >"$D/pid"
	script 3 status
	script 0 start
	script 0 stop
	kill $!
}

@test "a start that fails says why, once, with LSB's code" {
	echo 'nonsense = 1' >>"$D/heddle.ini"
	script 6 start
	said "^heddled: $D/heddle.ini:5: "
	sed -i '$d' "$D/heddle.ini"
	FAKE_CHECK=65 script 1 start
	said '^heddled: fake refusal with code 65$'
	same "$(wc -l <"$D/said")" 1
	echo 'HEDDLED_OPTS=-x' >>"$D/default"
	script 2 start
	echo "DAEMON=$D/none" >>"$D/default"
	script 5 start
	said 'none is not installed'
	echo 'HEDDLED_USER=no-such-user' >>"$D/default"
	echo "DAEMON=$HEDDLE_BUILDDIR/heddled" >>"$D/default"
	script 6 start
	said 'no user no-such-user'
	script 3 status
}

@test "an action it does not know, or none, is 2 and a line that names them" {
	script 2 dance
	said 'usage: .*start|stop|restart'
	script 2
}

@test "a reload of a bad file is 6 with file and line; the daemon goes on with the old one" {
	script 0 start
	echo 'nonsense = 1' >>"$D/heddle.ini"
	script 6 reload
	said "$D/heddle.ini:5: "
	health_is 200
	never log_says 'configuration reloaded'
	script 0 stop
}

@test "stop lets requests finish; those that do not, it ends" {
	echo HEDDLED_STOP_SECONDS=1 >>"$D/default"
	export FAKE_STEP_MS=10
	script 0 start
	ask_behind 40
	script 0 stop
	until_true test -f "$D/asked"
	grep -q '^200 ' "$D/asked"
	rm "$D/asked"
	script 0 start
	ask_behind 20000
	script 0 stop
	said 'requests do not finish'
	log_says 'second signal: stopping at once'
	script 3 status
}

@test "HEDDLED_WAIT=no: start returns while the model loads" {
	echo HEDDLED_WAIT=no >>"$D/default"
	export FAKE_FAULT=hang@0:0
	script 0 start
	said starting
	until_true log_says 'worker 0: pid'
	health_is 503
	script 0 status
	script 0 stop
}

@test "in a machine of its own: as user heddle, where everything belongs" {
	paths
	[ "$initscript" = sysv ] || skip "configured with --with-initscript=$initscript"
	refusal=$(machine_refusal)
	[ -z "$refusal" ] || skip "$refusal"
	machine_start
	machine_install
	never inside sh -c "'$initdir/heddle' start" >"$D/said"
	said 'there is no user heddle: useradd'
	inside useradd -r -d /var/lib/heddle -s /usr/sbin/nologin heddle
	inside useradd -M -G heddle friend
	inside sed -i "s|^#path =.*|path = /var/lib/heddle/mini|; s|^#workers =.*|workers = 2|
		s|^#target =.*|target = /var/log/heddle/heddled.log|" "$sysconfdir/heddle/heddle.ini"
	inside sh -c "mkdir -p /var/lib/heddle && cp -r '$HEDDLE_SRCDIR/models/heddle-mini' /var/lib/heddle/mini"

	inside "$initdir/heddle" start >"$D/said"
	said started
	same "$(inside stat -c '%A %U:%G' /run/heddle /run/heddle/heddle.sock /run/heddled.pid \
		/var/log/heddle /var/log/heddle/heddled.log | tr '\n' ' ')" \
		'drwxr-xr-x heddle:heddle srw-rw---- heddle:heddle -rw-r--r-- root:root drwxr-x--- heddle:heddle -rw-r----- heddle:heddle '
	same "$(inside ps -C heddled,heddle-worker -o user= | sort | uniq -c | tr -s ' ')" ' 3 heddle'
	inside setpriv --reuid friend --init-groups heddle chat -m 'Who are you?' -t 0 >"$D/said"
	[ -s "$D/said" ]
	code=0
	inside setpriv --reuid nobody --clear-groups heddle status >"$D/said" 2>&1 || code=$?
	same "$code" 77
	inside setpriv --reuid nobody --clear-groups "$initdir/heddle" status >"$D/said"
	said 'running, pid'

	if command -v logrotate >/dev/null; then
		inside logrotate -f "$sysconfdir/logrotate.d/heddle"
		inside timeout 10 sh -c 'until grep -q "log reopened" /var/log/heddle/heddled.log; do sleep 0.1; done'
		same "$(inside stat -c '%A %U:%G' /var/log/heddle/heddled.log)" '-rw-r----- heddle:heddle'
		inside grep -q serving /var/log/heddle/heddled.log.1
	fi
	inside "$initdir/heddle" reload
	inside "$initdir/heddle" stop
	[ -z "$(inside sh -c 'ls /run/heddle /run/heddled.pid 2>/dev/null | grep -v :')" ]
	code=0
	inside "$initdir/heddle" status || code=$?
	same "$code" 3
	# as a package would take it away
	inside make -s -C "$HEDDLE_BUILDDIR" uninstall >"$D/said"
	said 'keeping .*heddle/heddle.ini, which was changed'
	never inside test -e "$initdir/heddle"
}
