# docs/examples.md: every block on it does what it says.

load lib
load clients
load nginx

setup_file()
{
	find_openai || true
	find_nginx || true
	daemon_start_both -s fabric.workers=2 -s fabric.progress_timeout=300s
	export NGINX=none QUESTION=$D/question.json
	[ -z "$nginx" ] || nginx_start < <(page_block nginx)
}

teardown_file()
{
	nginx_stop
	daemon_stop
}

# blocks PYTHON LANGUAGE
blocks()
{
	(cd "$HEDDLE_SRCDIR/tests/e2e" && "$1" clients_docs.py "$2") || {
		tail -n 40 "$D/log" >&2
		return 1
	}
}

@test "the shell's blocks" {
	need_nginx
	blocks python3 sh
}

@test "Python's blocks" {
	need_openai
	blocks "$python" python
}

@test "the agent" {
	need_openai
	unset D PID
	daemon_dir
	export FAKE_SCRIPT=$D/script HEDDLE_WORKER=$HEDDLE_BUILDDIR/fake-worker
	daemon_start_both
	(cd "$HEDDLE_SRCDIR/tests/e2e" && "$python" -c "
from clients_openai_tools import calls, invoke, script
script(calls(invoke('temperature', city='Oslo'), invoke('temperature', city='Rome')),
       calls(invoke('temperature', city='Atlantis')), 'In Rome, with 33 degrees.')")
	blocks "$python" 'python with-tools'
	daemon_stop
}

@test "the lines of heddle.ini" {
	{ cat "$D/heddle.ini"; page_block ini | sed '/^\[listen\]$/d'; } >"$D/page.ini"
	[ "$(wc -l <"$D/page.ini")" -eq 5 ]
	HEDDLE_WORKER=$HEDDLE_BUILDDIR/heddle-worker "$HEDDLE_BUILDDIR/heddled" -t -c "$D/page.ini"
}
