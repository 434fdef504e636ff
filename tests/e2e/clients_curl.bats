# curl, in the ways people use it, over the Unix socket and over TCP.

load lib
load clients

setup_file()
{
	daemon_start_both -s fabric.workers=2 -s fabric.progress_timeout=300s
	json='content-type: application/json'
	hello='{"messages":[{"role":"user","content":"Hello"}],"temperature":0}'
	says='Hello! I am heddle-mini. How can I help you?'
	export json hello says
}

teardown_file()
{
	daemon_stop
}

# way unix|tcp: $base and the arguments in $how that lead there
way()
{
	case $1 in
	unix) base=http://heddle how=(--unix-socket "$SOCKET") ;;
	tcp) base=http://$TCP how=() ;;
	esac
}

# by WAY CURL-ARG... PATH: curl to that path
by()
{
	way "$1"
	curl -sS "${how[@]}" "${@:2:$#-2}" "$base${*: -1}"
}

# known N FIELD: of the golden conversations
known()
{
	(cd "$HEDDLE_SRCDIR/tests/e2e" && python3 -c "
import json, clients_known
k = clients_known.KNOWN[$1]
print($2)")
}

# pieces WAY BODY: the texts of a streamed answer's events, one a line
pieces()
{
	by "$1" -N -H "$json" -d "$2" /v1/chat/completions >"$D/events"
	same "$(tail -c 16 "$D/events" | tr '\n' .)" 'data: [DONE]..'
	sed -n 's/^data: .*"delta":{"content":"\([^"]*\)"}.*/\1/p' "$D/events"
}

@test "curl -d: an answer, over both" {
	for way in unix tcp; do
		body=$(by $way -f -H "$json" -d "$hello" /v1/chat/completions)
		part "\"content\":\"$says\""
	done
}

@test "curl without a content type of its own making is told what is wrong" {
	body=$(by unix -w '\n%{http_code}' -d "$hello" /v1/chat/completions)
	same "${body##*$'\n'}" 415
	part 'application/json'
}

@test "curl --json @file: a needle in 1,000 tokens of text is found, over both" {
	known 6 'json.dumps({"messages": k.messages, "temperature": 0})' >"$D/ask"
	answer=$(known 6 k.answer)
	[ "$(wc -c <"$D/ask")" -gt 2000 ]
	for way in unix tcp; do
		body=$(by $way -f --json "@$D/ask" /v1/chat/completions)
		part "\"content\":\"$answer\""
		part "\"prompt_tokens\":$(known 6 'len(k.prompt_ids)'),"
	done
}

@test "curl -N: the events of a stream, over both" {
	for way in unix tcp; do
		got=$(pieces $way "${hello%\}},\"stream\":true}")
		same "$(tr -d '\n' <<<"$got")" "$says"
		[ "$(wc -l <<<"$got")" -gt 8 ]
		# each event is a line and an empty line, nothing else
		same "$(grep -cv '^data: ' "$D/events")" "$(grep -c '^data: ' "$D/events")"
	done
}

@test "Expect: 100-continue with a large body: asked, told to go on, answered" {
	head -c 1500000 /dev/zero | tr '\0' ' ' >"$D/blank"
	{ cat "$D/blank"; printf '%s' "$hello"; } >"$D/large"
	for way in unix tcp; do
		by $way -v -H "$json" -H 'Expect: 100-continue' --expect100-timeout 300 --data-binary \
			"@$D/large" /v1/chat/completions >"$D/out" 2>"$D/trace"
		body=$(cat "$D/out")
		part "\"content\":\"$says\""
		grep -q '^> Expect: 100-continue' "$D/trace"
		grep -q '^< HTTP/1.1 100' "$D/trace"
		grep -q '^< HTTP/1.1 200' "$D/trace"
	done
}

@test "a body over the limit is refused before it is sent" {
	head -c 70000000 /dev/zero >"$D/huge"
	body=$(by unix -v -H "$json" -H 'Expect: 100-continue' --expect100-timeout 300 --data-binary "@$D/huge" \
		-w '\n%{size_upload}' /v1/chat/completions 2>"$D/trace")
	rm -f "$D/huge"
	grep -q '^< HTTP/1.1 413' "$D/trace"
	part 'api.max_body'
	same "${body##*$'\n'}" 0
}

@test "a body in chunks, and one that comes slowly, are taken" {
	for way in unix tcp; do
		body=$(printf '%s' "$hello" | by $way -f -H "$json" -H 'Transfer-Encoding: chunked' \
			--data-binary @- /v1/chat/completions)
		part "\"content\":\"$says\""
	done
	mkfifo "$D/slow"
	by unix -f -H "$json" -T - -X POST /v1/chat/completions <"$D/slow" >"$D/out" 3>&- &
	client=$!
	exec 7>"$D/slow"
	printf '%s' "${hello:0:20}" >&7
	until_status '"health":"ready"' # others are served meanwhile
	printf '%s' "${hello:20}" >&7
	exec 7>&-
	wait "$client"
	body=$(cat "$D/out")
	part "\"content\":\"$says\""
}

@test "several requests share a connection" {
	for way in unix tcp; do
		way $way
		counted=$(curl -sSf "${how[@]}" -w '%{num_connects}\n' -o "$D/1" "$base/v1/models" \
			--next -sSf "${how[@]}" -w '%{num_connects}\n' -o "$D/2" -H "$json" -d "$hello" \
			"$base/v1/chat/completions" \
			--next -sS "${how[@]}" -w '%{num_connects}\n' -o "$D/3" -H "$json" -d '{"messages":7}' \
			"$base/v1/chat/completions" \
			--next -sSfN "${how[@]}" -w '%{num_connects}\n' -o "$D/4" -H "$json" \
			-d "${hello%\}},\"stream\":true}" "$base/v1/chat/completions" \
			--next -sSf "${how[@]}" -w '%{num_connects}\n' -o "$D/5" -H "$json" -d "$hello" \
			"$base/v1/chat/completions")
		same "${counted//$'\n'/ }" '1 0 0 0 0'
		for n in 2 5; do
			body=$(cat "$D/$n")
			part "\"content\":\"$says\""
		done
		body=$(cat "$D/3")
		part '"param":"messages"'
	done
}

@test "HTTP/1.0: whole and streamed, the end of the connection ends the answer" {
	for way in unix tcp; do
		body=$(by $way -f -0 -i -H "$json" -d "$hello" /v1/chat/completions)
		part "\"content\":\"$says\""
		grep -qi '^content-length:' <<<"$body"
		body=$(by $way -f -0 -i -N -H "$json" -d "${hello%\}},\"stream\":true}" /v1/chat/completions)
		part 'data: [DONE]'
		grep -qi '^connection: close' <<<"$body"
		same "$(grep -ci '^transfer-encoding:' <<<"$body")" 0
		same "$(sed -n 's/^data: .*"delta":{"content":"\([^"]*\)"}.*/\1/p' <<<"$body" | tr -d '\n')" \
			"$says"
	done
}

@test "HEAD, OPTIONS and a wrong method are answered as HTTP has it" {
	same "$(by unix -I -o "$D/head" -w '%{http_code} %{size_download}' /health)" '200 0'
	same "$(by tcp -X DELETE -o "$D/out" -D "$D/head" -w '%{http_code}' /v1/chat/completions)" 405
	grep -qi '^allow: .*POST' "$D/head"
	same "$(by unix -o "$D/out" -w '%{http_code}' /v1/nothing)" 404
}

@test "a curl that is killed frees what it waited for, over both" {
	metric 'heddle_requests_total{outcome="aborted"}'
	before=$value
	for way in unix tcp; do
		for stream in false true; do
			way $way
			curl -sSN "${how[@]}" -H "$json" -d "${hello%\}},\"stream\":$stream,
				\"ignore_eos\":true,\"max_tokens\":60000}" \
				"$base/v1/chat/completions" >"$D/out" 3>&- &
			client=$!
			until_status '"running":1,'
			kill -KILL "$client"
			until_idle
		done
	done
	metric 'heddle_requests_total{outcome="aborted"}'
	same "$value" $((before + 4))
}
