# nginx in front of the Unix socket, as docs/examples.md has it.

load lib
load clients
load nginx

setup_file()
{
	find_openai || true
	find_nginx || return 0
	json='content-type: application/json'
	hello='{"messages":[{"role":"user","content":"Hello"}],"temperature":0}'
	says='Hello! I am heddle-mini. How can I help you?'
	export json hello says
	# the streams' order is tried with workers that are stopped for a while
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=300s
	nginx_start < <(page_block nginx)
}

teardown_file()
{
	nginx_stop
	daemon_stop
}

setup()
{
	need_nginx
}

teardown()
{
	if [ -z "${BATS_TEST_COMPLETED-}" ] && [ -n "${D-}" ]; then
		tail -n 20 "$D/nginx.log" "$D/access.log" >&2
		tail -n 40 "$D/log" >&2
	fi
	if [ -n "${own-}" ]; then
		nginx_stop
		daemon_stop
	fi
}

# own_daemon: this case has a daemon, and an nginx, of its own
own_daemon()
{
	unset D PID NGINX_PID
	own=1
	daemon_start -s fabric.workers=2 -s fabric.progress_timeout=300s
}

# ask CURL-ARG... PATH: through nginx; body in $body, status in $http
ask()
{
	http=$(curl -sS -o "$D/answer" -D "$D/head" -w '%{http_code}' "${@:1:$#-1}" "http://$NGINX${*: -1}")
	body=$(cat "$D/answer")
	head=$(tr -d '\r' <"$D/head")
}

streamed_text()
{
	sed -n 's/^data: .*"delta":{"content":"\([^"]*\)"}.*/\1/p' <<<"$body" | tr -d '\n'
}

stream_order()
{
	(cd "$HEDDLE_SRCDIR/tests/e2e" && python3 nginx_stream.py "$NGINX")
}

# the sockets that heddled has, by inode
sockets()
{
	find "/proc/$PID/fd" -lname 'socket:*' -printf '%l\n' | sort
}

@test "an answer and a stream come through" {
	ask -H "$json" -d "$hello" /v1/chat/completions
	same "$http" 200
	part "\"content\":\"$says\""
	grep -q '^Server: nginx' <<<"$head"
	ask -H "$json" -d "${hello%\}},\"stream\":true}" /v1/chat/completions
	same "$(streamed_text)" "$says"
	part 'data: [DONE]'
}

@test "a needle comes through, whole and streamed" {
	for stream in false true; do
		(cd "$HEDDLE_SRCDIR/tests/e2e" && python3 -c "
import json, clients_known
k = clients_known.NEEDLES[1]
print(json.dumps({'messages': k.messages, 'temperature': 0, 'stream': '$stream' == 'true'}))") >"$D/ask"
		ask -H "$json" -d "@$D/ask" /v1/chat/completions
		case $stream in
		false) part '"content":"4651"' ;;
		true) same "$(streamed_text)" 4651 ;;
		esac
	done
}

@test "each event arrives before the next is made" {
	stream_order
}

@test "a large body, and one in chunks, come through" {
	{ head -c 1500000 /dev/zero | tr '\0' ' '; printf '%s' "$hello"; } >"$D/large"
	ask -H "$json" --data-binary "@$D/large" /v1/chat/completions
	part "\"content\":\"$says\""
	ask -H "$json" -H 'transfer-encoding: chunked' --data-binary "@$D/large" /v1/chat/completions
	part "\"content\":\"$says\""
}

@test "a body over nginx's limit is refused by nginx, in JSON" {
	head -c 67108865 /dev/zero >"$D/huge"
	ask -H "$json" --data-binary "@$D/huge" /v1/chat/completions
	rm "$D/huge"
	same "$http" 413
	grep -q '^Content-Type: application/json' <<<"$head"
	python3 -c 'import json, sys; assert json.load(sys.stdin)["error"]["code"] == "body_too_large"' <<<"$body"
}

@test "heddled's own refusals come through word for word" {
	ask -H "$json" -d '{"messages":7}' /v1/chat/completions
	same "$http" 400
	part '"param":"messages"'
	ask /v1/nothing
	same "$http" 404
	part '"error":{"message":'
}

@test "a request id of the client's goes through and comes back; others get one of nginx's" {
	ask -H 'x-request-id: order-66' /v1/models
	grep -qi '^x-request-id: order-66$' <<<"$head"
	grep -q 'GET /v1/models 200 .* order-66 ' "$D/log"
	ask /v1/models
	id=$(sed -n 's/^x-request-id: //Ip' <<<"$head")
	[[ $id =~ ^[0-9a-f]{32}$ ]]
	grep -q "GET /v1/models 200 .* $id " "$D/log"
}

@test "nginx keeps its connections to heddled" {
	ask -H "$json" -d "$hello" /v1/chat/completions
	before=$(sockets)
	for stream in false true false; do
		ask -H "$json" -d "${hello%\}},\"stream\":$stream}" /v1/chat/completions
		same "$http" 200
	done
	same "$(sockets)" "$before"
}

@test "a client that goes away is noticed through nginx, streaming or not" {
	metric 'heddle_requests_total{outcome="aborted"}'
	before=$value
	for stream in true false; do
		curl -sSN -H "$json" -d "${hello%\}},\"stream\":$stream,\"ignore_eos\":true,
			\"max_tokens\":60000}" "http://$NGINX/v1/chat/completions" >"$D/out" 3>&- &
		client=$!
		until_status '"running":1,'
		kill -KILL "$client"
		until_idle
	done
	metric 'heddle_requests_total{outcome="aborted"}'
	same "$value" $((before + 2))
}

@test "the openai package does not notice that nginx is there" {
	need_openai
	TCP=$NGINX "$python" "$HEDDLE_SRCDIR/tests/e2e/clients_openai.py" Tcp.test_request_ids_go_through \
		Tcp.test_stream_is_the_answer_in_pieces Tcp.test_a_client_that_gives_up_leaves_nothing \
		Tcp.test_a_wrong_parameter_is_a_bad_request_that_names_it Tcp.test_models_are_listed_and_found
}

@test "a heddled that went and came back is served again" {
	own_daemon
	nginx_start < <(page_block nginx)
	ask /health
	same "$http" 200
	kill -TERM "$PID"
	wait_gone "$PID"
	ask /health
	same "$http" 502
	daemon_start -s fabric.workers=2
	ask -H "$json" -d "$hello" /v1/chat/completions
	part "\"content\":\"$says\""
}

@test "with nothing but proxy_pass: streams are still not held back, and limits are heddled's" {
	own_daemon
	nginx_start <<-'SITE'
		server {
			listen 127.0.0.1:8080;
			client_max_body_size 0;
			location / {
				proxy_pass http://unix:/run/heddle/heddle.sock;
			}
		}
	SITE
	stream_order
	head -c 70000000 /dev/zero >"$D/huge"
	ask -H "$json" --data-binary "@$D/huge" /v1/chat/completions
	rm "$D/huge"
	same "$http" 413
	part 'api.max_body'
}
