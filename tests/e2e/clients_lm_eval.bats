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
	python clients_lm_eval.py "$1"
}

# known WHAT: other prompts, of which the reference said more
known()
{
	python clients_lm_eval_known.py "$1"
}

python()
{
	(cd "$HEDDLE_SRCDIR/tests/e2e" && python3 "$@") || {
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

@test "log-likelihoods of one and of several tokens are the reference's: token ids in batches" {
	known ids
}

@test "log-likelihoods of text are the same" {
	known text
}

@test "log-likelihoods with max_tokens 0 are the same" {
	known empty
}

@test "a whole text in windows, as perplexity is measured" {
	known rolling
}

@test "generation until stop strings, the end or a limit says what the reference says" {
	known until
}
