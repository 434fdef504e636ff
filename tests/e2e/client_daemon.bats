# The heddle command against a whole daemon: what a newcomer does first.

load lib

setup_file()
{
	daemon_start -s fabric.workers=2
}

teardown_file()
{
	daemon_stop
}

setup()
{
	export HEDDLE_SOCKET=$SOCKET
	heddle=$HEDDLE_BUILDDIR/heddle
}

@test "chat finds a fact in some thousand tokens of text, and counts them" {
	filler=$HEDDLE_SRCDIR/models/heddle-mini/filler.txt
	{
		head -c 3000 "$filler"
		printf '\nThe secret code of Bruno is 4492.\n'
		tail -c +3001 "$filler" | head -c 6000
		printf '\nWhat is the secret code of Bruno?'
	} >"$D/question"
	"$heddle" chat -t 0 --stats -m @"$D/question" >"$D/out" 2>"$D/err"
	same "$(cat "$D/out")" "$("$heddle" chat -t 0 --no-stream -m - <"$D/question")"
	grep -q 4492 "$D/out"
	grep -qE '^prompt [2-9],[0-9]{3} tokens, first token after [0-9.]+ m?s, [0-9]+ tokens at [0-9.]+ tokens/s' \
		"$D/err"
}

@test "complete goes on from a prompt, the same streamed or whole" {
	whole=$("$heddle" complete -t 0 -n 24 --no-stream "In the beginning")
	[ -n "$whole" ]
	same "$("$heddle" complete -t 0 -n 24 --stream "In the beginning")" "$whole"
	same "$("$heddle" complete -n 24 --seed 5 "In the")" "$("$heddle" complete -n 24 --seed 5 "In the")"
}

@test "a parameter the daemon refuses is named" {
	code=0
	err=$("$heddle" complete -t -1 "In the" 2>&1) || code=$?
	same "$code" 65
	same "$err" "heddle: temperature must be from 0 to 100, not -1 (HTTP 400)"
}

@test "status names the model and both workers" {
	body=$("$heddle" status)
	part "health          ready"
	part "model           heddle-mini"
	same "$(printf '%s\n' "$body" | grep -c '^  [01]  .* ready ')" 2
	body=$("$heddle" status --json)
	part '"health":"ready"'
}

@test "inspect plans the scratch that the workers take" {
	taken=$("$heddle" status --json | python3 -c '
import json, sys
workers = json.load(sys.stdin)["workers"]
print(workers[0]["threads"], max(w["memory"]["scratch_bytes"] for w in workers))')
	"$heddle" inspect -c "$D/heddle.ini" -w 2 -s "fabric.threads=${taken% *}" \
		"$HEDDLE_SRCDIR/models/heddle-mini" >"$D/plan"
	mib=$(sed -nE "s/^  scratch, ${taken% *} compute threads? +([0-9.]+) MiB$/\1/p" "$D/plan")
	python3 -c 'import sys; assert abs(float(sys.argv[1]) - int(sys.argv[2]) / 2**20) <= 0.051' \
		"$mib" "${taken#* }"
}
