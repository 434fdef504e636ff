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

@test "docs/api.md shows the members that /status has" {
	"$heddle" status --json >"$D/status"
	python3 - "$D/status" "$HEDDLE_SRCDIR/docs/api.md" <<-'EOF'
		import json, re, sys
		def keys(value):
		    if isinstance(value, list):
		        return set().union(*map(keys, value))
		    if not isinstance(value, dict):
		        return set()
		    return set(value).union(*map(keys, value.values()))
		status = json.load(open(sys.argv[1]))
		status["configuration"] = {"model": {"path": 0, "load": 0, "name": 0}}  # the first section stands for all
		section = open(sys.argv[2]).read().split("\n## Status\n")[1].split("\n- ")[0]
		shown = set(re.findall(r'"(\w+)":', section))
		assert shown == keys(status), shown ^ keys(status)
	EOF
}

# planned_mib REGEX: the MiB beside that row of the plan
planned_mib()
{
	sed -nE "s/^  $1 +([0-9.]+) MiB$/\1/p" "$D/plan"
}

@test "inspect plans the scratch and the states that the workers take" {
	read -r threads sequences scratch states < <("$heddle" status --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
most = lambda kind: max(w["memory"][kind] for w in status["workers"])
print(status["workers"][0]["threads"], status["scheduler"]["max_sequences"],
      most("scratch_bytes"), most("sequences_bytes"))')
	"$heddle" inspect -c "$D/heddle.ini" -w 2 -s "fabric.threads=$threads" \
		"$HEDDLE_SRCDIR/models/heddle-mini" >"$D/plan"
	python3 - "$(planned_mib "scratch, $threads compute threads?")" "$scratch" \
		"$(planned_mib "states of $sequences sequences? .schedule.max_sequences.")" "$states" <<-'EOF'
		import sys
		for planned, taken in zip(sys.argv[1::2], sys.argv[2::2]):
		    assert abs(float(planned) - int(taken) / 2**20) <= 0.051, (planned, taken)
	EOF
}
