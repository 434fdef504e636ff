# Tool calls as the openai package sees them. The workers answer by a script (tests/proc/fake_worker.c).

load lib
load clients
export HEDDLE_WORKER=$HEDDLE_BUILDDIR/fake-worker

setup_file()
{
	find_openai || return 0
	daemon_dir
	export FAKE_SCRIPT=$D/script
	daemon_start_both -s fabric.workers=2
}

teardown_file()
{
	daemon_stop
}

@test "tool calls through the openai package" {
	need_openai
	"$python" "$HEDDLE_SRCDIR/tests/e2e/clients_openai_tools.py" || {
		daemon_log
		return 1
	}
}
