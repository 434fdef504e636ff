# clients.bash: what the tests of other people's clients share. Load after lib.

# find_openai: $python has the openai package; in setup_file, with need_openai in setup. ./bootstrap check
# installs it in build/venv and says so by HEDDLE_PYTHON; by hand:
#   python3 -m venv build/venv; build/venv/bin/pip install 'openai>=3,<4'
find_openai()
{
	local p

	export python=
	for p in ${HEDDLE_PYTHON:+"$HEDDLE_PYTHON"} "$HEDDLE_BUILDDIR/venv/bin/python3" python3; do
		if "$p" -c 'import openai; assert openai.VERSION[0] == "3"' 2>/dev/null; then
			python=$p
			return 0
		fi
	done
	return 1
}

# need_openai: skips the case without it (skip does not work in setup_file)
need_openai()
{
	[ -n "$python" ] ||
		skip "no python3 has the openai package, version 3 (HEDDLE_PYTHON names one that has)"
}

# daemon_start_both ARG...: a daemon on its socket and on TCP; $TCP is the address.
daemon_start_both()
{
	daemon_start -s listen.tcp=127.0.0.1:0 "$@"
	TCP=$(sed -n 's/.* listening on \(127.0.0.1:[0-9]*\)$/\1/p' "$D/log")
	[ -n "$TCP" ]
	export TCP
}

# until_idle: waits until /status says that nothing runs and nothing waits.
until_idle()
{
	until_status '"running":0,' '"waiting":0,'
}

# until_status TEXT...: waits until /status has all of them.
until_status()
{
	local deadline=$((SECONDS + PATIENCE)) text missing

	while :; do
		get /status
		missing=
		for text; do
			[[ $body == *"$text"* ]] || missing=$text
		done
		[ -n "$missing" ] || return 0
		[ $SECONDS -lt $deadline ] || same "$body" "a status with $missing"
		sleep 0.05 # between two looks
	done
}

# metric NAME: its value in $value
metric()
{
	value=$(curl -sSf --unix-socket "$SOCKET" http://heddle/metrics |
		awk -v name="$1" '$1 == name { print $2 }')
	[ -n "$value" ]
}
