# The API of a whole heddled: two CPU workers on the bundled model, curl as the client.

load lib

setup_file()
{
	# the patience is for sanitizer builds on a busy machine
	daemon_start -s fabric.workers=2 -s schedule.max_sequences=8 -s fabric.progress_timeout=300s
}

teardown_file()
{
	daemon_stop
}

chat()
{
	post /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":\"$1\"}],\
\"temperature\":0${2:+,$2}}"
}

# stream BODY: the data lines of a streamed answer in $events.
stream()
{
	events=$(printf '%s' "$1" | curl -sSN --unix-socket "$SOCKET" -H 'content-type: application/json' \
		--data-binary @- "http://heddle${2:-/v1/chat/completions}" | sed -n 's/^data: //p')
}

# text of the content deltas in $events
streamed_text()
{
	printf '%s\n' "$events" | sed -n 's/.*"delta":{"content":"\([^"]*\)"}.*/\1/p' | tr -d '\n'
}

# Waits until /status says that nothing runs and nothing waits.
idle()
{
	local deadline=$((SECONDS + PATIENCE))

	until get /status && [[ $body == *'"running":0,'* ]] && [[ $body == *'"waiting":0,'* ]]; do
		[ $SECONDS -lt $deadline ] || same "$body" "an idle engine"
		sleep 0.05
	done
}

@test "chat answers, says why it ended, and counts" {
	chat 'What is 3 + 4?'
	same "$http" 200
	part '"content":"7"'
	part '"finish_reason":"stop","stop_reason":null'
	part '"usage":{"prompt_tokens":13,"completion_tokens":2,"total_tokens":15'
	part '"model":"heddle-mini"'
}

@test "the bundled model says what its goldens say" {
	chat 'Hello' '"max_tokens":40'
	part '"content":"Hello! I am heddle-mini. How can I help you?"'
	chat 'Repeat 48213.'
	part '"content":"48213"'
}

@test "a stream is the whole answer in pieces, role first, usage and DONE last" {
	stream '{"messages":[{"role":"user","content":"Hello"}],"temperature":0,"stream":true,
		"stream_options":{"include_usage":true}}'
	same "$(streamed_text)" 'Hello! I am heddle-mini. How can I help you?'
	[[ $(printf '%s\n' "$events" | head -1) == *'"role":"assistant"'* ]]
	same "$(printf '%s\n' "$events" | tail -1)" '[DONE]'
	[[ $(printf '%s\n' "$events" | tail -2 | head -1) == *'"usage":{"prompt_tokens":5,'* ]]
}

@test "stop strings, limits and stop ids end an answer" {
	chat 'Hello' '"stop":["heddle"]'
	part '"content":"Hello! I am "'
	part '"stop_reason":"heddle"'
	stream '{"messages":[{"role":"user","content":"Hello"}],"temperature":0,"stream":true,
		"stop":"mini. How"}'
	same "$(streamed_text)" 'Hello! I am heddle-'
	chat 'Hello' '"max_tokens":2'
	part '"content":"Hello!"'
	part '"finish_reason":"length"'
}

@test "completions echo a prompt with its log-probabilities" {
	post /v1/completions '{"prompt":[0,3,2650,4,6],"echo":true,"max_tokens":1,"logprobs":1,
		"temperature":0,"return_token_ids":true}'
	same "$http" 200
	part '"text":"<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>Hello"'
	part '"token_logprobs":[null,'
	part '"token_ids":[2650]'
	part '"prompt_token_ids":[0,3,2650,4,6]'
	# lm-eval asks so: only the prompt's
	post /v1/completions '{"prompt":"Hello","echo":true,"max_tokens":0,"logprobs":1}'
	same "$http" 200
	part '"tokens":["Hello"],"token_logprobs":[null]'
}

@test "one seed gives one answer, alone and among others" {
	local ask='{"prompt":"Hello","max_tokens":12,"temperature":1.5,"seed":42,"logprobs":0}' first

	post /v1/completions "$ask"
	first=${body#*\"choices\":}
	post /v1/completions "$ask"
	same "${body#*\"choices\":}" "$first"
	post /v1/completions '{"prompt":["x","Hello"],"max_tokens":12,"temperature":1.5,"seed":42,
		"logprobs":0}'
	# the second of these choices is the first one of the other answer, but for its index
	first=${first#*\"index\":0,}
	part "${first%%\}],\"usage\"*}"
}

@test "n answers of one seed differ from each other, and come again" {
	local ask='{"prompt":"Hello","max_tokens":12,"temperature":1.5,"seed":7,"n":2}' first one two

	post /v1/completions "$ask"
	first=${body#*\"choices\":}
	one=${first#*\"text\":} two=${one#*\"text\":}
	[ "${one%%,\"logprobs\"*}" != "${two%%,\"logprobs\"*}" ]
	post /v1/completions "$ask"
	same "${body#*\"choices\":}" "$first"
	chat 'Hello' '"n":2,"max_tokens":4'
	same "$(grep -o '"content":"Hello! I am' <<<"$body" | wc -l)" 2
}

@test "n choices and many clients at once all get their own" {
	local i

	chat 'Hello' '"n":3'
	same "$(grep -o 'Hello! I am heddle-mini' <<<"$body" | wc -l)" 3
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
		curl -sS --unix-socket "$SOCKET" -H 'content-type: application/json' -o "$D/many.$i" \
			-d "{\"messages\":[{\"role\":\"user\",\"content\":\"Repeat 1$i$i.\"}],
			\"temperature\":0}" http://heddle/v1/chat/completions 3>&- &
	done
	wait
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
		body=$(cat "$D/many.$i")
		part "\"content\":\"1$i$i\""
	done
}

# Files, not variables: bash is slow at cutting up long strings.
@test "a large prompt is read by a pool thread and gives the same tokens" {
	head -c 100000 "$HEDDLE_SRCDIR/models/heddle-mini/filler.txt" | tr -d '"\\' |
		tr '\n\t' '  ' >"$D/text"
	{ printf '{"prompt":"'; cat "$D/text"; printf '"}'; } >"$D/request"
	curl -sSf --unix-socket "$SOCKET" -H 'content-type: application/json' \
		--data-binary "@$D/request" http://heddle/tokenize >"$D/tokens"
	[ "$(tr -cd , <"$D/tokens" | wc -c)" -gt 15000 ]
	curl -sSf --unix-socket "$SOCKET" -H 'content-type: application/json' \
		--data-binary @- http://heddle/detokenize >"$D/back" <<<"$(sed 's/,"count".*/}/' "$D/tokens")"
	cmp "$D/back" "$D/request"
}

@test "a needle in the text is found" {
	local hay

	hay=$(head -c 2000 "$HEDDLE_SRCDIR/models/heddle-mini/filler.txt" | tr -d '"\\' |
		tr '\n\t' '  ')
	chat "${hay:0:800} The secret code of Bruno is 4492. ${hay:800:400} What is the secret code of Bruno?" \
		'"max_tokens":20'
	same "$http" 200
	part '4492'
}

@test "a body without a length is 411, a packed one 415, and the connection goes on" {
	post /v1/completions ''
	same "$http" 411
	part 'content-length'
	post /v1/completions '{"prompt":"a","max_tokens":1}' -H 'content-encoding: gzip'
	same "$http" 415
	post /v1/completions '{"prompt":"a","max_tokens":1}' -H 'content-encoding: identity'
	same "$http" 200
	post /v1/completions '{"prompt":"a","max_tokens":1}' -H 'transfer-encoding: chunked'
	same "$http" 200
}

@test "what is wrong is 400 and names the field" {
	post /v1/chat/completions '{"messages":[{"role":"user","content":"a"}],"temperature":-1}'
	same "$http" 400
	part '"param":"temperature"'
	post /v1/completions '{"prompt":"a","suffix":"b"}'
	same "$http" 400
	post /v1/completions '{"prompt":"a",'
	same "$http" 400
	post /v1/chat/completions '{"messages":[{"role":"wizard","content":"a"}]}'
	same "$http" 400
	part 'messages[0]'
	post /v1/completions '{"prompt":"a","max_tokens":100000000}'
	same "$http" 400
	part 'maximum context length'
	part context_length_exceeded
}

@test "routes are told apart by path and method" {
	get /v1/nothing
	same "$http" 404
	get /v1/chat/completions
	same "$http" 405
	[[ $headers == *'allow: POST'* ]] || same "$headers" 'allow: POST'
	get /v1/models
	part '"id":"heddle-mini"'
	get /version
	part '"version":"'
	get /health
	same "$http" 200
	get /status
	part '"max_sequences":"8"'
	part '"workers":[{"rank":0'
	get /metrics
	part 'heddle_requests_total{outcome="ok"}'
	part 'heddle_requests_running '
}

# sample NAME: the value of a metric, with its labels.
sample()
{
	printf '%s\n' "$body" | sed -n "s/^heddle_$1 //p"
}

@test "what HTTP itself refuses is counted, by its status" {
	get /metrics
	same "$(sample 'http_refused_total{status="417"}')" 0
	before=$(sample 'requests_total{outcome="refused"}')
	post /v1/completions '{"prompt":"a"}' -H 'expect: a miracle'
	same "$http" 417
	get /metrics
	same "$(sample 'http_refused_total{status="417"}')" 1
	same "$(sample 'requests_total{outcome="refused"}')" $((before + 1))
}

@test "metrics show each pool, worker and ring, and pages come back" {
	local class rank pages pid

	idle
	get /metrics
	for class in raw csa hca; do
		pages=$(sample "cache_pages{class=\"$class\"}")
		[ "${pages:-0}" -gt 0 ] || same "$pages" "pages of $class"
		[ "$(sample "cache_page_bytes{class=\"$class\"}")" -gt 0 ]
		same "$(sample "cache_pages_used{class=\"$class\"}")" 0
	done
	for rank in 0 1; do
		same "$(sample "worker_up{rank=\"$rank\"}")" 1
		# the pool is what its pages are together, as the table at the start has it
		pages=$(printf '%s\n' "$body" | awk -F'[ "]' '
			/^heddle_cache_pages\{/ { n[$2] = $NF }
			/^heddle_cache_page_bytes\{/ { sum += n[$2] * $NF }
			END { printf "%d", sum }')
		same "$(sample "worker_memory_bytes{rank=\"$rank\",kind=\"pool\"}")" "$pages"
	done
	curl -sSN --unix-socket "$SOCKET" -H 'content-type: application/json' -d '{"prompt":"Hello",
		"ignore_eos":true,"stream":true,"max_tokens":30000}' -o "$D/run" \
		http://heddle/v1/completions 3>&- &
	pid=$!
	until get /metrics && [ "$(sample requests_running)" = 1 ]; do sleep 0.05; done
	[ "$(sample 'cache_pages_used{class="raw"}')" -gt 0 ]
	kill $pid
	wait $pid || true
	idle
	get /metrics
	same "$(sample 'cache_pages_used{class="raw"}')" 0
	[ "$(sample request_queue_time_seconds_count)" -gt 0 ]
	[ "$(sample handoffs_total)" -gt 0 ]
	[ "$(sample ring_bytes)" -gt 0 ]
}

@test "a call that is asked for begins the answer, whatever the model makes of it" {
	local tools='"tools":[{"type":"function","function":{"name":"get_weather"}}]'

	chat 'Hello' "$tools,\"max_tokens\":5,\"tool_choice\":\"required\""
	same "$http" 200
	[[ $body != *DSML* ]] || same "$body" 'no markup'
	chat 'Hello' "$tools,\"max_tokens\":1,\"reasoning_effort\":\"high\",
		\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}"
	same "$http" 200
	[[ $body != *DSML* ]] || same "$body" 'no markup'
	part '"finish_reason":"length"'
	[[ $headers == *'x-heddle-warning: thinking is off'* ]] || same "$headers" 'a note'
	chat 'Hello' "$tools,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"nope\"}}"
	same "$http" 400
	part '"param":"tool_choice"'
	# tools do not keep the model from answering in words
	chat 'Hello' "$tools,\"max_tokens\":3"
	same "$http" 200
	part '"completion_tokens":'
}

# The one word is over 1.9 MB: 29 bytes, the longest token, for each of the 65536 of the context.
@test "a prompt that cannot fit is refused by its length" {
	{ printf '{"prompt":"'; head -c 60000000 /dev/zero | tr '\0' a; printf '"}'; } >"$D/word"
	http=$(curl -sS --unix-socket "$SOCKET" -H 'content-type: application/json' \
		--data-binary "@$D/word" -o "$D/refused" -w '%{http_code}' http://heddle/v1/completions)
	rm "$D/word"
	body=$(cat "$D/refused")
	same "$http" 400
	part 'the prompt has 60000000 bytes'
	part context_length_exceeded
}

@test "request ids are kept and unknown fields named" {
	post /v1/completions '{"prompt":"a","max_tokens":1,"max_token":2}' -H 'x-request-id: my-own-7'
	same "$http" 200
	part '"id":"cmpl-my-own-7"'
	[[ $headers == *'x-request-id: my-own-7'* ]] || same "$headers" 'x-request-id'
	[[ $headers == *'did you mean max_tokens'* ]] || same "$headers" 'x-heddle-warning'
}

@test "a client that goes away leaves nothing running" {
	local i before

	idle
	get /metrics
	before=$(sample 'requests_total{outcome="aborted"}')
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do # more than run at a time: some wait in the queue
		curl -sS --unix-socket "$SOCKET" -H 'content-type: application/json' -o /dev/null \
			-d "{\"prompt\":\"Hello\",\"ignore_eos\":true,\"stream\":$( ((i % 2)) && echo true || echo false),
			\"max_tokens\":30000}" http://heddle/v1/completions 3>&- 2>&- &
		pids+=($!)
	done
	until get /status && [[ $body == *'"running":8,'* ]]; do sleep 0.05; done
	kill "${pids[@]}"
	wait "${pids[@]}" || true
	idle
	get /metrics
	same "$(sample 'requests_total{outcome="aborted"}')" $((before + 12))
}

# long N: that many clients with answers of 30000 tokens, in the background; adds to $pids.
long()
{
	local i

	for ((i = 0; i < $1; i++)); do
		curl -sS --unix-socket "$SOCKET" -H 'content-type: application/json' -o "$D/long.$i" \
			-d '{"prompt":"Hello","ignore_eos":true,"max_tokens":30000}' \
			http://heddle/v1/completions 3>&- 2>&- &
		pids+=($!)
	done
}

# until_metric NAME VALUE
until_metric()
{
	local deadline=$((SECONDS + PATIENCE))

	until get /metrics && [ "$(sample "$1")" = "$2" ]; do
		[ $SECONDS -lt $deadline ] || same "$(sample "$1")" "$2"
		sleep 0.05
	done
}

@test "clients that leave the queue are taken out of it, and nobody else" {
	local pids=() running

	idle
	long 8
	until_metric requests_running 8
	running=("${pids[@]}")
	pids=()
	long 20
	until_metric requests_waiting 20
	kill "${pids[@]:2:15}"
	until_metric requests_waiting 5
	same "$(sample requests_running)" 8
	kill "${running[@]}" # those that stayed in the queue have their turn
	until_metric requests_running 5
	same "$(sample requests_waiting)" 0
	kill "${pids[@]:0:2}" "${pids[@]:17}"
	wait "${running[@]}" "${pids[@]}" || true
	idle
	rm -f "$D"/long.*
}

@test "a killed worker ends streams with one error event, and the group comes back" {
	local pid deadline=$((SECONDS + PATIENCE))

	curl -sSN --unix-socket "$SOCKET" -H 'content-type: application/json' -d '{"prompt":"Hello",
		"ignore_eos":true,"stream":true,"max_tokens":60000}' -o "$D/cut" \
		http://heddle/v1/completions 3>&- 2>"$D/cut.err" &
	until grep -q '^data' "$D/cut" 2>"$D/grep.err"; do
		[ $SECONDS -lt $deadline ] || same '' 'a first event'
		sleep 0.05
	done
	get /status
	pid=${body#*\"pid\":}
	kill -KILL "${pid%%,*}"
	wait $! || true # curl sees a stream that was not ended in order
	body=$(tail -c 600 "$D/cut")
	part '"error":{"message":"'
	part '"type":"service_unavailable_error"'
	[[ $body != *'[DONE]'* ]]
	daemon_ready
	chat 'Hello' '"max_tokens":2'
	part '"content":"Hello!"'
}
