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
