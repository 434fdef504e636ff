# lib.bash: a daemon of its own for each .bats file (or case), and how to talk to it.
#
#   load lib
#   setup_file()    { daemon_start -s fabric.workers=2; }
#   teardown_file() { daemon_stop; }
#   @test "..."     { post /v1/completions '{"prompt": "a"}'; [ "$http" = 200 ]; field .x.0.y; }
#
# Each daemon has its own directory under /tmp (a socket's path may have 107 bytes) with heddle.ini,
# the socket and the log. The log is printed when something fails, and removed with the rest.

# How long a wait may take, in seconds, before it is a failure. Only failures take that long; a daemon
# built with a sanitizer on a busy machine takes a good part of it.
PATIENCE=180

: "${HEDDLE_BUILDDIR:=$PWD/build}" "${HEDDLE_SRCDIR:=$PWD}"

# daemon_dir: makes $D, the directory, and heddle.ini in it; extra lines from stdin are not read.
daemon_dir()
{
	D=$(mktemp -d /tmp/heddle.XXXXXX)
	SOCKET=$D/s
	cat >"$D/heddle.ini" <<-INI
		[model]
		path = $HEDDLE_SRCDIR/models/heddle-mini
		[listen]
		socket = $SOCKET
	INI
	export D SOCKET
}

# daemon_spawn ARG...: starts heddled in the foreground of a background job; $PID.
daemon_spawn()
{
	[ -n "${D-}" ] || daemon_dir
	HEDDLE_WORKER=${HEDDLE_WORKER:-$HEDDLE_BUILDDIR/heddle-worker} \
		"$HEDDLE_BUILDDIR/heddled" -f -c "$D/heddle.ini" "$@" >"$D/log" 2>&1 3>&- &
	PID=$!
	export PID
}

# daemon_ready [SECONDS]: waits until /health says 200; fails as soon as the daemon is gone.
daemon_ready()
{
	local deadline=$((SECONDS + ${1:-$PATIENCE}))

	until curl -sf -o "$D/health" --unix-socket "$SOCKET" http://heddle/health; do
		if ! kill -0 "$PID" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
			daemon_log
			return 1
		fi
		sleep 0.05 # between two looks; the wait itself is for the daemon
	done
}

# daemon_start ARG...: spawns and waits.
daemon_start()
{
	daemon_spawn "$@"
	daemon_ready
}

daemon_log()
{
	echo "--- log of the daemon in $D"
	cat "$D/log"
} >&2

# daemon_stop: SIGTERM, its exit status in $code; the directory is removed when that is 0.
daemon_stop()
{
	code=0
	[ -n "${PID-}" ] || return 0
	kill -TERM "$PID" 2>/dev/null || true
	wait_gone "$PID"
	wait "$PID" 2>/dev/null || code=$?
	[ "$code" = 127 ] && code=0 # not a child of this shell: bats runs cases in others
	if [ "$code" != 0 ]; then
		echo "heddled left with $code"
		daemon_log
	fi
	unset PID
	daemon_clean
	[ "$code" = 0 ]
}

daemon_clean()
{
	[ -n "${D-}" ] && rm -rf "$D"
	unset D
}

# wait_gone PID [SECONDS]: until no such process runs (a zombie counts as gone).
wait_gone()
{
	local deadline=$((SECONDS + ${2:-$PATIENCE})) state

	while state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) &&
		[ -n "$state" ] && [ "$state" != Z ]; do
		if [ $SECONDS -ge $deadline ]; then
			echo "process $1 does not end" >&2
			return 1
		fi
		sleep 0.05
	done
}

# request METHOD PATH [BODY] [CURL-ARG...]: body of the answer in $body, status in $http.
request()
{
	local method=$1 path=$2 data=${3-} me=$BASHPID

	shift 2
	[ $# -gt 0 ] && shift
	set -- -sS -X "$method" --unix-socket "$SOCKET" -D "$D/headers.$me" \
		-o "$D/body.$me" -w '%{http_code}' "$@"
	if [ -n "$data" ]; then
		set -- "$@" -H 'content-type: application/json' --data-binary @-
	fi
	: >"$D/body.$me"
	http=$(printf '%s' "$data" | curl "$@" "http://heddle$path") || {
		daemon_log
		return 1
	}
	body=$(cat "$D/body.$me")
	headers=$(tr -d '\r' <"$D/headers.$me")
	rm -f "$D/body.$me" "$D/headers.$me"
}

post()
{
	request POST "$@"
}

get()
{
	request GET "$@"
}

# same WHAT EXPECTED: a comparison that shows both sides when it fails.
same()
{
	[ "$1" = "$2" ] && return 0
	printf 'got      %s\nexpected %s\n' "$1" "$2" >&2
	[ -n "${D-}" ] && daemon_log
	return 1
}

# part TEXT: fails unless $body contains it.
part()
{
	case $body in *"$1"*) return 0 ;; esac
	printf 'the answer (%s)\n%s\ndoes not contain\n%s\n' "$http" "$body" "$1" >&2
	return 1
}
