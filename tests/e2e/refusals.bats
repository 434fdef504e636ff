#!/usr/bin/env bats
# What a start refuses, heddled -t refuses: with the same exit code, in the same sentence, and neither
# hangs. The workers are fake, so nothing but heddled itself looks at the model's files.

load lib
load life
export HEDDLE_WORKER=$HEDDLE_BUILDDIR/fake-worker

mini=$HEDDLE_SRCDIR/models/heddle-mini

# model_new: $D/model, the bundled model by links
model_new()
{
	rm -rf "$D/model"
	mkdir "$D/model"
	ln -s "$mini"/* "$D/model"
}

# put NAME: a file of $D/model from stdin
put()
{
	rm -rf "$D/model/$1"
	cat >"$D/model/$1"
}

# both CODE TEXT ARG...: -t and a start end with that code, and with the same one line, which has the text
both()
{
	refused "$1" "$2" -t "${@:3}"
	mv "$D/lines" "$D/said"
	refused "$@"
	same "$(cat "$D/lines")" "$(cat "$D/said")"
	[ ! -e "$SOCKET" ]
}

# model CODE TEXT ARG...: the same with $D/model
model()
{
	both "$1" "$2" -c "$D/heddle.ini" -s model.path="$D/model" "${@:3}"
}

# conf CODE TEXT ASSIGNMENT...: the same with keys
conf()
{
	local code=$1 text=$2 args=()

	shift 2
	for key in "$@"; do
		args+=(-s "$key")
	done
	both "$code" "$text" -c "$D/heddle.ini" "${args[@]}"
}

@test "the bundled model by links, and -c /dev/null, are fine" {
	model_new
	"$HEDDLE_BUILDDIR/heddled" -t -c /dev/null -s model.path="$D/model" -s listen.socket="$SOCKET" |
		grep -q fine
	daemon_start -s model.path="$D/model"
	ask 3
	same "$http" 200
}

@test "generation_config.json: -t says what a start says" {
	model_new
	while IFS='|' read -r says text; do
		printf '%b' "$text" | put generation_config.json
		model 65 "$says"
		grep -qF "$D/model/generation_config.json" "$D/lines"
	done <<-'ROWS'
		generation_config.json:1: |
		generation_config.json:1: |{"temperature": 1
		must hold a JSON object|[]
		duplicate|{"top_p": 1, "top_p": 1}
		unable to decode byte 0xff|{"x": "\xff"}
		temperature must be from 0|{"temperature": -1}
		temperature must be a number|{"temperature": "hot"}
		top_p must be from 0|{"top_p": 5}
		top_k must be an integer|{"top_k": 1.5}
		repetition_penalty must be from|{"repetition_penalty": 0}
		eos_token_id 5000 is outside the vocabulary of 4096 tokens|{"eos_token_id": [1, 5000]}
		eos_token_id must be a token id|{"eos_token_id": "1"}
	ROWS
}

@test "tokenizer.json: -t says what a start says" {
	model_new
	sed 's/<｜User｜>/<｜Loser｜>/' "$mini/tokenizer.json" | put tokenizer.json
	model 65 "added_tokens lacks '<｜User｜>'"
	head -c 1000 "$mini/tokenizer.json" | put tokenizer.json
	model 65 "$D/model/tokenizer.json:"
	sed 's/"vocab_size": 4096/"vocab_size": 4095/' "$mini/config.json" | put config.json
	cp "$mini/tokenizer.json" "$D/model/tokenizer.json"
	model 65 "outside the vocabulary of 4095 tokens"
	rm "$D/model/tokenizer.json"
	model 66 "$D/model/tokenizer.json: No such file or directory"
}

@test "what is no regular file is refused and never waited for" {
	for name in tokenizer.json tokenizer_config.json generation_config.json; do
		model_new
		rm "$D/model/$name"
		mkfifo "$D/model/$name"
		model 65 "$D/model/$name: is not a regular file"
		rm "$D/model/$name"
		mkdir "$D/model/$name"
		model 65 "$D/model/$name: is not a regular file"
		rmdir "$D/model/$name"
		ln -s /dev/zero "$D/model/$name"
		model 65 "$D/model/$name: is not a regular file"
	done
	mkfifo "$D/fifo"
	both 65 "$D/fifo: is not a regular file" -c "$D/fifo"
	both 65 "$D: is not a regular file" -c "$D"
	both 65 "/dev/zero: is not a regular file" -c /dev/zero
}

@test "a model.path that is not there or no directory is 66" {
	conf 66 "$D/none: No such file or directory; a directory" model.path="$D/none"
	conf 66 "/etc/passwd: Not a directory; a directory" model.path=/etc/passwd
	conf 66 "/etc/passwd/x: Not a directory; a directory" model.path=/etc/passwd/x
}

@test "listen.tcp, groups and users: -t says what a start says" {
	for tcp in foo 127.0.0.1:99999 localhost:http ::1:80; do
		conf 78 "listen.tcp: '$tcp' is not HOST:PORT" listen.tcp="$tcp"
	done
	conf 78 "listen.tcp: cannot resolve '1.2.3.4.5'" listen.tcp=1.2.3.4.5:80
	conf 78 "listen.group: there is no group 'nonesuch'" listen.group=nonesuch
	conf 78 "daemon.user: there is no user nonesuch" daemon.user=nonesuch
	conf 78 "daemon.group: there is no group nonesuch" daemon.group=nonesuch
}

@test "a directory that is not there is 66, whatever was to stand in it" {
	conf 66 "log.target: directory $D/none: No such file" log.target="$D/none/log"
	conf 66 "daemon.pidfile: directory $D/none: No such file" daemon.pidfile="$D/none/pid"
	conf 66 "listen.socket: directory $D/none: No such file" listen.socket="$D/none/s"
	conf 66 "log.target: directory $D/heddle.ini: Not a directory" log.target="$D/heddle.ini/log"
	conf 78 "log.target: $D is a directory" log.target="$D"
	mkfifo "$D/log.fifo"
	conf 78 "is a FIFO that nobody reads" log.target="$D/log.fifo"
	conf 78 "$D/heddle.ini exists and is not a socket" listen.socket="$D/heddle.ini"
}

@test "a log.target that is no absolute path is 78" {
	for target in heddled.log ./log sysolg ""; do
		conf 78 "log.target = $target: must be stderr, syslog or an absolute path" log.target="$target"
	done
	printf '[log]\ntarget = log\n' >>"$D/heddle.ini"
	both 78 "heddled: $D/heddle.ini:6: log.target = log: must be" -c "$D/heddle.ini"
}

@test "a model.name that is no UTF-8 is 78" {
	conf 78 "model.name: is not valid UTF-8" model.name=$'a\xffb'
	mkdir "$D/"$'m\xff'
	ln -s "$mini"/* "$D/"$'m\xff'
	ln -s "$D/"$'m\xff' "$D/link"
	conf 78 "set model.name" model.path="$D/link"
}

@test "rules across keys name the place, where the value stands in a file" {
	printf '[fabric]\nring = 65537\n' >>"$D/heddle.ini"
	both 78 "heddled: $D/heddle.ini:6: fabric.ring must be a power of two" -c "$D/heddle.ini"
	conf 78 "heddled: cache.prefix: reuse" fabric.ring=1M cache.prefix=on
}

@test "what a refusal quotes is one line that moves no cursor" {
	conf 78 'api.strict = \x1b[31mx\ny: must be on or off' api.strict=$'\e[31mx\ny'
	conf 78 'unknown key na\x1bme in [model]' model.na$'\e'me=a
	printf '[api]\nstrict = \e]0;title\a\n' >>"$D/heddle.ini"
	both 78 'api.strict = \x1b]0;title\x07: must be on or off' -c "$D/heddle.ini"
	both 78 'unknown section [\x1b[2Jé\xff' -s $'\e[2Jé\xff.x=1'
	code=0
	"$HEDDLE_BUILDDIR/heddle" config -s api.strict=$'\e[31mx\ny' 2>"$D/lines" || code=$?
	same "$code" 78
	same "$(cat "$D/lines")" 'heddle: api.strict = \x1b[31mx\ny: must be on or off'
}

@test "what only another user lacks is found, too" {
	[ "$(id -u)" = 0 ] || skip "only root can become another user"
	runuser -u nobody -- test -x "$HEDDLE_WORKER" || skip "nobody cannot reach the build"
	chmod 777 "$D" # so that nobody may remove the socket
	mkdir -m 700 "$D/private"
	conf 77 "log.target: cannot open $D/private/log: Permission denied" daemon.user=nobody \
		log.target="$D/private/log"
	model_new
	mv "$D/model" "$D/private"
	conf 77 "$D/private/model: Permission denied; a directory" daemon.user=nobody \
		model.path="$D/private/model"
	[ ! -e "$D/private/log" ]
}
