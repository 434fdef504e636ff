# Clients that go away, that are too many, too slow or too large: what each of them gets, and that nobody else
# notices.

load lib
load clients

teardown()
{
	daemon_stop
}

setup_file()
{
	find_openai || true
}

python()
{
	(cd "$HEDDLE_SRCDIR/tests/e2e" && "$@") || {
		tail -n 40 "$D/log" >&2
		return 1
	}
}

@test "clients that go away in queue, prefill and decode free all in a step; another one's stream is the same" {
	daemon_start_both -s fabric.workers=2 -s fabric.progress_timeout=300s -s schedule.max_sequences=3 \
		-s schedule.step_tokens=32
	python python3 clients_cancel.py
	# each of them in the log, with the process it was
	[ "$(grep -c ' http: POST /v1/completions 499 .* unix pid [0-9]* uid [0-9]*$' "$D/log")" -gt 6 ]
	[ "$(grep -c ' http: POST /v1/completions 499 .* 127.0.0.1:[0-9]*$' "$D/log")" -ge 6 ]
}

@test "a full queue is 429 with the time to come back, and the openai package does" {
	need_openai
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=300s -s schedule.max_sequences=1 \
		-s schedule.queue=1
	python "$python" clients_openai_busy.py
}

@test "time limits and sizes of heddle.ini hold, and each refusal says which" {
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=300s -s schedule.max_sequences=4 \
		-s schedule.queue_timeout=1s -s api.header_timeout=1s -s api.write_timeout=1s \
		-s api.max_body=2K -s api.max_connections=4
	python python3 clients_limits.py
}

# ask_as UID GROUP: the models, as somebody else
ask_as()
{
	setpriv --reuid "$1" --regid "$2" --clear-groups \
		curl -sSf --unix-socket "$SOCKET" http://heddle/v1/models 2>&1
}

@test "the socket's mode and group say who may ask, the log who did; TCP is off unless asked for" {
	[ "$(id -u)" = 0 ] || skip "asks as other users, which takes root"
	daemon_start -s fabric.workers=1 -s listen.group=games -s listen.mode=0660
	chmod 711 "$D"
	same "$(stat -c '%a %U:%G' "$SOCKET")" '660 root:games'
	body=$(ask_as 54321 games)
	part '"id":"heddle-mini"'
	grep -q ' http: GET /v1/models 200 .* unix pid [0-9]* uid 54321$' "$D/log"
	body=$(ask_as 54321 nogroup) && same "$body" 'a refusal'
	# nothing else is open: no socket of heddled's is in the kernel's tables of TCP
	sockets=$(find "/proc/$PID/fd" -lname 'socket:*' -printf '%l\n' | tr -dc '0-9\n')
	[ -n "$sockets" ]
	for inode in $sockets; do
		same "$(awk -v inode="$inode" '$10 == inode' "/proc/$PID/net/tcp" "/proc/$PID/net/tcp6")" ''
	done
}

@test "a silent stream gets comments: curl shows them, the openai package passes over them" {
	need_openai
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=300s
	ask='{"messages":[{"role":"user","content":"Hello"}],"temperature":0,"stream":true}'
	workers=$(curl -sSf --unix-socket "$SOCKET" http://heddle/status | grep -o '"pid":[0-9]*' | cut -d: -f2)
	kill -STOP $workers
	(cd "$HEDDLE_SRCDIR/tests/e2e" && exec "$python" -c "
import os, httpx2
from openai import DefaultHttpxClient, OpenAI
from clients_known import HELLO
client = OpenAI(base_url='http://heddle/v1', api_key='none', max_retries=0, http_client=DefaultHttpxClient(
    transport=httpx2.HTTPTransport(uds=os.environ['SOCKET'])))
chunks = client.chat.completions.create(model='x', messages=HELLO.messages, temperature=0, stream=True)
print(''.join(c.choices[0].delta.content or '' for c in chunks if c.choices))") >"$D/package" 2>&1 3>&- &
	package=$!
	curl -sSN --unix-socket "$SOCKET" -H 'content-type: application/json' -d "$ask" -o "$D/events" \
		http://heddle/v1/chat/completions 3>&- 2>"$D/curl" &
	events=$!
	deadline=$((SECONDS + PATIENCE))
	until grep -q '^: ' "$D/events" 2>/dev/null; do
		[ $SECONDS -lt $deadline ] || same "$(cat "$D/events")" 'a comment'
		sleep 0.1 # between two looks
	done
	kill -CONT $workers
	wait $events
	wait $package
	same "$(cat "$D/package")" 'Hello! I am heddle-mini. How can I help you?'
	same "$(sed -n 's/^data: .*"delta":{"content":"\([^"]*\)"}.*/\1/p' "$D/events" | tr -d '\n')" \
		'Hello! I am heddle-mini. How can I help you?'
	same "$(grep -c '^data: \[DONE\]$' "$D/events")" 1
}
