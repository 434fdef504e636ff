# The heddle command, against a server that says what a test wants to hear; no daemon is needed.

setup_file()
{
	T=$(mktemp -d /tmp/heddle-client.XXXXXX)
	export T
	python3 "$HEDDLE_SRCDIR/tests/e2e/client_server.py" "$T" 3>&- &
	echo $! >"$T/pid"
	until [ -e "$T/ready" ]; do
		kill -0 "$(cat "$T/pid")"
		sleep 0.02 # between two looks
	done
}

teardown_file()
{
	kill "$(cat "$T/pid")"
	rm -rf "$T"
}

setup()
{
	export HEDDLE_SOCKET=$T/s
	heddle=$HEDDLE_BUILDDIR/heddle
	cd "$T"
}

# out CODE COMMAND...: runs; fails unless it ends with CODE. $out and $err are what it printed.
out()
{
	local want=$1 got=0
	shift
	"$@" >"$T/out" 2>"$T/err" || got=$?
	out=$(cat "$T/out")
	err=$(cat "$T/err")
	[ "$got" = "$want" ] && return 0
	printf 'exit code %s, expected %s\nout: %s\nerr: %s\n' "$got" "$want" "$out" "$err"
	return 1
}

same()
{
	[ "$1" = "$2" ] || { printf 'got      %s\nexpected %s\n' "$1" "$2"; return 1; }
}

part()
{
	case $1 in *"$2"*) ;; *) printf '%s\ndoes not contain\n%s\n' "$1" "$2"; return 1 ;; esac
}

# sent EXPRESSION: of the last request's body, b
sent()
{
	python3 -c "import json; b = json.load(open('$T/request.json')); print(($1))"
}

@test "complete prints the text, streamed or whole" {
	out 0 "$heddle" complete hello
	same "$out" "Hello, wörld! €"
	same "$(sent "b['prompt'], b.get('stream')")" "('hello', None)"
	out 0 "$heddle" complete --stream hello
	same "$out" "Hello, wörld! €"
	same "$(sent "b['stream'], b['stream_options']")" "(True, {'include_usage': True})"
	out 0 "$heddle" complete --stats --no-stream hello
	same "$(sent "b.get('stream')")" None
	part "$err" "prompt 1,234 tokens (64 cached), 5 tokens"
}

@test "complete takes its prompt from arguments, a file or stdin" {
	out 0 "$heddle" complete say it hello
	same "$(sent "b['prompt']")" "say it hello"
	printf 'from a file\nhello' >prompt
	out 0 "$heddle" complete -f prompt
	same "$(sent "repr(b['prompt'])")" "'from a file\\nhello'"
	out 0 "$heddle" complete <prompt
	same "$(sent "len(b['prompt'])")" 17
	out 0 "$heddle" complete -f - <prompt
	head -c 3000000 /dev/zero | tr '\0' x >prompt
	out 0 "$heddle" complete -f prompt
	same "$(sent "len(b['prompt'])")" 3000000
	out 64 "$heddle" complete -f prompt hello
	part "$err" "not both"
	out 66 "$heddle" complete -f nosuch
	part "$err" "heddle: nosuch: No such file"
	printf 'a\xe2\x82' >prompt
	out 65 "$heddle" complete -f prompt
	part "$err" "prompt: not UTF-8 at byte 1"
}

@test "sampling options become request fields of their type" {
	out 0 "$heddle" complete -t 0 --top-p 0.5 --top-k 7 --min-p 0.1 --seed -3 --stop a --stop b \
		--max-tokens 9 --ignore-eos --repetition-penalty 1.5 hello
	same "$(sent "b['temperature'], b['top_p'], b['top_k'], b['min_p'], b['seed'], b['stop'], \
b['max_tokens'], b['ignore_eos'], b['repetition_penalty']")" \
		"(0.0, 0.5, 7, 0.1, -3, ['a', 'b'], 9, True, 1.5)"
	out 64 "$heddle" complete --top-k many hello
	part "$err" "--top-k many: it must be an integer"
	out 64 "$heddle" complete --temperature nan hello
	out 64 "$heddle" complete --nosuch hello
}

@test "chat -m asks one question, with a system text and thinking" {
	out 0 "$heddle" chat -m hello
	same "$out" "Hello, wörld! €"
	same "$(sent "b['messages']")" "[{'role': 'user', 'content': 'hello'}]"
	out 0 "$heddle" chat --system 'Be kind.' --thinking --stream -m think
	same "$out" 42
	same "$err" "let me see"
	same "$(sent "b['messages'][0]['content'], b['chat_template_kwargs']")" \
		"('Be kind.', {'thinking': True})"
	printf 'a question hello' >question
	out 0 "$heddle" chat -m @question
	same "$(sent "b['messages'][0]['content']")" "a question hello"
	out 0 "$heddle" chat <question
	out 0 "$heddle" chat --stats -m @question
	part "$err" "first token after"
	part "$err" "tokens/s"
	same "$out" "Hello, wörld! €"
	out 64 "$heddle" chat hello
	part "$err" "behind -m"
}

@test "chat on a terminal: Ctrl-C stops the answer, /reset forgets, Ctrl-D leaves" {
	python3 "$HEDDLE_SRCDIR/tests/e2e/client_chat.py" "$T" "$heddle"
	[ -e "$T/left" ] # the server saw the client go
}

@test "the server's refusals keep its sentence and get an exit code" {
	out 65 "$heddle" complete refuse
	same "$err" "heddle: temperature must be at least 0 (HTTP 400)"
	out 69 "$heddle" complete busy
	same "$err" "heddle: the workers are not ready (HTTP 503)"
	out 70 "$heddle" complete broken
	part "$err" "HTTP 500"
	out 70 "$heddle" complete garbage
	part "$err" "not what it should be"
}

@test "an answer that breaks off is an error, with what had come already printed" {
	for how in cut fail abort hangup; do
		out 69 "$heddle" complete --stream $how
		[ $how = cut ] && { same "$out" "part of"; part "$err" "before its answer was complete"; }
		[ $how = fail ] && { same "$out" "part of"; part "$err" "the answer broke off: a worker died"; }
		same "$(printf '%s\n' "$err" | wc -l)" 1
	done
}

@test "nobody answers: exit code 69, one line that says what to do" {
	out 69 "$heddle" -S "$T/nosuch" status
	part "$err" "nobody answers on $T/nosuch: No such file or directory; start heddled, or name"
	python3 -c "import socket; s = socket.socket(socket.AF_UNIX); s.bind('$T/dead')"
	HEDDLE_SOCKET=$T/dead out 69 "$heddle" complete hello
	part "$err" "Connection refused"
	http_proxy=http://127.0.0.1:1 out 0 "$heddle" complete hello
}

@test "status shows tables, --json what the daemon sent" {
	out 0 "$heddle" status
	part "$out" "uptime_seconds  2 min 5 s"
	part "$out" "rank  state  pid  progress_age_seconds"
	part "$out" "0     ready  71   4 ms"
	part "$out" "1     down   -    -"
	part "$out" "[0] memory: weights_bytes 14.9 MiB, load_ns 657 ms"
	part "$out" "384.0 KiB"
	part "$out" "timeout_seconds  2 min 0 s"
	case $out in *fabric.workers*) false ;; esac
	out 0 "$heddle" status --all
	part "$out" "fabric.workers  2"
	out 0 "$heddle" status --json
	printf '%s' "$out" | python3 -c 'import json, sys; assert json.load(sys.stdin)["model"] == "fake"'
}

@test "usage: help, version, unknown commands" {
	out 0 "$heddle" --help
	for c in complete chat status config inspect; do
		part "$out" "  $c "
		out=$("$heddle" $c --help) || return 1
		part "$out" "usage: heddle [-S SOCKET] $c"
		out 0 "$heddle" --help
	done
	out 0 "$heddle" --version
	part "$out" "heddle $(cat "$HEDDLE_SRCDIR/VERSION")"
	out 64 "$heddle"
	out 64 "$heddle" nosuch
	part "$err" "no command nosuch"
	out 71 sh -c "'$heddle' --help >/dev/full"
	part "$err" "No space left"
}

@test "config prints every key with its origin" {
	printf '[fabric]\nworkers = 3\n' >h.ini
	out 0 "$heddle" config -c h.ini -s attention.kv=fp8
	part "$out" "workers"
	part "$out" "h.ini:2"
	printf '%s\n' "$out" | grep -qE '^kv += fp8 '
	printf '%s\n' "$out" | grep -qE '^queue += 1024 +; default'
	part "$err" "model.path is not set"
	out 0 "$heddle" config --ini
	diff -u "$HEDDLE_SRCDIR/etc/heddle.ini" "$T/out"
	out 78 "$heddle" config -c h.ini -s fabric.wokers=2
	out 66 "$heddle" config -c nosuch.ini
	out 64 "$heddle" config --ini --man
}

@test "inspect describes the bundled model and plans its memory" {
	model=$HEDDLE_SRCDIR/models/heddle-mini
	out 0 "$heddle" inspect --workers 2 "$model"
	part "$out" "6 layers, 21,372,569 parameters, 21.3 MiB in 2 files"
	part "$out" "0-1  SWA  window only"
	printf '%s\n' "$out" | grep -qE 'layers.N.ffn.experts.E.w1.weight +256 x 256 +FP4 \+ E8M0 +48 +1.6 MiB'
	part "$out" "memory of each of 2 workers"
	part "$out" "13.9 MiB"
	out 0 "$heddle" inspect -s fabric.threads=3 "$model"
	printf '%s\n' "$out" | grep -qE '^  scratch, 3 compute threads +[0-9.]+ MiB$'
	# a configuration of another model: the rest is shown
	out 0 "$heddle" inspect -s schedule.max_context=100000 "$model"
	[[ $out != *scratch* && $out != *"states of"* ]]
	part "$err" "heddle: scratch and states are not known: schedule.max_context: 100000 tokens are more than"
	part "$out" "pages of a sequence of 1,024 tokens"
	out 78 "$heddle" inspect --workers 3 "$model"
	part "$err" "num_attention_heads 8, o_groups 4, vocab_size 4096, n_routed_experts 8"
	part "$err" "1, 2 or 4 would do"
	out 66 "$heddle" inspect "$T/nosuch"
	out 64 "$heddle" inspect
}

@test "inspect --verify prints hashes and ranges, and refuses what is no number" {
	model=$HEDDLE_SRCDIR/models/heddle-mini
	out 0 "$heddle" inspect --verify "$model"
	for f in model-00001-of-00002.safetensors model-00002-of-00002.safetensors; do
		printf '%s\n' "$out" | grep -q "$f .*$(sha256sum "$model/$f" | cut -d' ' -f1)"
	done
	printf '%s\n' "$out" | grep -qE 'layers.5.ffn.experts.\*.w2.weight +-8 +3 +0 +0 +0$'
	mkdir bad
	cp "$model"/*.json "$model"/*.safetensors bad/
	chmod u+w bad/*
	# the first two bytes of norm.weight become a NaN
	python3 - bad <<-'PY'
		import json, struct, sys
		index = json.load(open(sys.argv[1] + "/model.safetensors.index.json"))["weight_map"]
		path = sys.argv[1] + "/" + index["norm.weight"]
		with open(path, "r+b") as f:
		    n = struct.unpack("<Q", f.read(8))[0]
		    f.seek(8 + n + json.loads(f.read(n))["norm.weight"]["data_offsets"][0])
		    f.write(b"\xc0\x7f")
	PY
	out 65 "$heddle" inspect --verify bad
	printf '%s\n' "$out" | grep -qE 'norm.weight .* 1 +0 +0$'
	part "$err" "no number"
	# and the first two expert ids of a token name no expert
	python3 - bad <<-'PY'
		import json, struct, sys
		index = json.load(open(sys.argv[1] + "/model.safetensors.index.json"))["weight_map"]
		name = "layers.0.ffn.gate.tid2eid"
		with open(sys.argv[1] + "/" + index[name], "r+b") as f:
		    n = struct.unpack("<Q", f.read(8))[0]
		    f.seek(8 + n + json.loads(f.read(n))[name]["data_offsets"][0])
		    f.write(b"\x63\x00\x00\x00")
	PY
	out 65 "$heddle" inspect --verify bad
	part "$err" "what is no number, and ids of experts that are not there"
	cp "$model"/"$(python3 -c 'import json; print(json.load(open("bad/model.safetensors.index.json"))["weight_map"]["norm.weight"])')" bad/
	chmod u+w bad/*
	out 65 "$heddle" inspect --verify bad
	part "$err" "some tensors hold ids of experts that are not there, or one twice; see"
	truncate -s -1 bad/model-00002-of-00002.safetensors
	out 65 "$heddle" inspect bad
	part "$err" "bad/model-00002-of-00002.safetensors: truncated: tensor "
	rm bad/model-00002-of-00002.safetensors
	out 66 "$heddle" inspect bad
	rm -rf bad
}

@test "an option that is not there is named, with the help to read" {
	out 64 "$heddle" --wrong
	same "$err" "heddle: unrecognised option --wrong; see heddle --help"
	out 64 "$heddle" chat --wrong
	same "$err" "heddle: unrecognised option --wrong; see heddle chat --help"
	out 64 "$heddle" chat -xs
	same "$err" "heddle: unrecognised option -x; see heddle chat --help"
	out 64 "$heddle" chat -m
	same "$err" "heddle: option -m needs an argument; see heddle chat --help"
	out 64 "$heddle" --version=1
	same "$err" "heddle: option --version=1: it takes no argument; see heddle --help"
}
