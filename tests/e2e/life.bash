# life.bash: what the tests of the daemon's life share. Load after lib, then choose HEDDLE_WORKER.

setup()
{
	daemon_dir
	unset FAKE_FAULT FAKE_CHECK FAKE_STEP_MS
}

teardown()
{
	if [ -n "${PID-}" ] && kill -0 "$PID" 2>/dev/null; then
		kill -KILL "$PID"
		wait_gone "$PID"
	fi
	if [ -z "${BATS_TEST_COMPLETED-}" ] && [ -f "$D/log" ]; then
		cat "$D/log"
	fi
	daemon_clean
}

# workers_of PID: the pids of its workers, in one line
workers_of()
{
	pgrep -P "$1" | tr '\n' ' '
}

# until_true COMMAND...: waits for it
until_true()
{
	local deadline=$((SECONDS + PATIENCE))

	until "$@"; do
		if [ $SECONDS -ge $deadline ]; then
			echo "waited in vain for: $*" >&2
			return 1
		fi
		sleep 0.01 # between two looks
	done
}

health_is()
{
	[ "$(curl -s -o /dev/null -w '%{http_code}' --unix-socket "$SOCKET" http://heddle/health)" = "$1" ]
}

log_says()
{
	grep -q -- "$1" "${LOG-$D/log}"
}

# ask TOKENS: one completion
ask()
{
	post /v1/completions "{\"prompt\": \"the needle is in the hay\", \"max_tokens\": $1, \"ignore_eos\": true}"
}

# ask_behind TOKENS: the same in the background; its status lands in $D/asked
ask_behind()
{
	(
		ask "$1" && echo "$http $body" >"$D/asked.tmp"
		mv "$D/asked.tmp" "$D/asked"
	) 3>&- &
	until_true steps_run
}

steps_run()
{
	get /status
	[[ $body =~ \"running\":\ ?[1-9] ]]
}

# left CODE [SECONDS]: the daemon ends with that code
left()
{
	local code=0

	wait_gone "$PID" "${2-$PATIENCE}"
	wait "$PID" || code=$?
	same "$code" "$1"
}

# refused CODE TEXT ARG...: heddled -f ends with the code and one line that contains the text
refused()
{
	local code=0 want=$1 text=$2

	shift 2
	"$HEDDLE_BUILDDIR/heddled" -f "$@" >"$D/out" 2>"$D/err" 3>&- || code=$?
	same "$code" "$want"
	grep -v ' \(info\|notice\|warning\|debug\) ' "$D/err" >"$D/lines" || true
	same "$(wc -l <"$D/lines")" 1
	grep -qF -- "$text" "$D/lines" || same "$(cat "$D/lines")" "$text"
}
