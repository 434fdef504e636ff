# EleutherAI's evaluation harness (lm-eval, local-completions): its exact requests, replayed; what it
# takes from the answers against transformers' goldens.

load lib
load clients

setup_file()
{
	daemon_start -s fabric.workers=2 -s attention.kv=f32 -s attention.index_key=f32 \
		-s fabric.progress_timeout=300s
}

teardown_file()
{
	daemon_stop
}

replay()
{
	(cd "$HEDDLE_SRCDIR/tests/e2e" && python3 clients_lm_eval.py "$1") || {
		tail -n 20 "$D/log" >&2
		return 1
	}
}

@test "lm-eval with token ids in batches" {
	replay 'tokens in batches'
}

@test "lm-eval with concurrent requests, as its async client sends them" {
	replay 'tokens, concurrent'
}

@test "lm-eval with text" {
	replay text
}

@test "lm-eval with local-chat-completions" {
	replay chat
}
