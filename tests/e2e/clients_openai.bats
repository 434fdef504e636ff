# The openai package, as people have it from PyPI, against a whole heddled.

load lib
load clients

setup_file()
{
	find_openai || return 0
	daemon_start_both -s fabric.workers=2 -s attention.kv=f32 -s attention.index_key=f32 \
		-s fabric.progress_timeout=300s
}

teardown_file()
{
	daemon_stop
}

setup()
{
	need_openai
}

# Both transports, but in sanitizer and distribution runs.
whole_run()
{
	[ -z "${HEDDLE_TEST_SUBSET-}" ] || skip "the other transport has been tried"
}

cases()
{
	"$python" "$HEDDLE_SRCDIR/tests/e2e/$1" "${@:2}" || {
		daemon_log
		return 1
	}
}

@test "openai over the Unix socket" {
	cases clients_openai.py Unix
}

@test "openai over TCP" {
	whole_run
	cases clients_openai.py Tcp
}

@test "openai's async client over the Unix socket" {
	whole_run
	cases clients_openai_async.py Unix
}

@test "openai's async client over TCP" {
	cases clients_openai_async.py Tcp
}

@test "each parameter of a request has its effect" {
	cases clients_openai_params.py
}
