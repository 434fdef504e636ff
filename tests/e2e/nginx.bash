# nginx.bash: an nginx of a test's own in front of its daemon. Load after lib and clients; the daemon runs.

# find_nginx: $nginx is the program, or it is not installed
find_nginx()
{
	export nginx=
	nginx=$(PATH=$PATH:/usr/sbin:/sbin command -v nginx)
}

# need_nginx: skips the case without it
need_nginx()
{
	[ -n "$nginx" ] || skip "nginx is not installed"
}

# page_block LANGUAGE: the first block of that language in docs/examples.md
page_block()
{
	awk -v begin="\`\`\`$1" '$0 == begin { on = 1; next } on && /^```$/ { exit } on' \
		"$HEDDLE_SRCDIR/docs/examples.md"
}

# nginx_start: in front of $SOCKET, with the site on stdin, which listens on 127.0.0.1:8080; $NGINX is
# the address it really listens on.
nginx_start()
{
	local port site deadline

	site=$(sed "s,/run/heddle/heddle.sock,$SOCKET,g")
	sed "s,@DIR@,$D,g; s,@USER@,$(id -un) $(id -gn),g" "$HEDDLE_SRCDIR/tests/e2e/nginx.conf.in" \
		>"$D/nginx.conf"
	for _ in 1 2 3 4 5; do # somebody else may take the port in between
		port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
		printf '%s\n' "${site//127.0.0.1:8080/127.0.0.1:$port}" >"$D/site.conf"
		"$nginx" -e "$D/nginx.log" -p "$D" -c "$D/nginx.conf" >"$D/nginx.out" 2>&1 3>&- &
		NGINX_PID=$!
		export NGINX_PID NGINX=127.0.0.1:$port
		deadline=$((SECONDS + PATIENCE))
		while kill -0 "$NGINX_PID" 2>/dev/null && [ $SECONDS -lt $deadline ]; do
			curl -s -o "$D/health" "http://$NGINX/health" && return 0
			sleep 0.05 # between two looks
		done
		grep -q 'Address already in use' "$D/nginx.log" || break
	done
	cat "$D/nginx.out" "$D/nginx.log" >&2
	return 1
}

nginx_stop()
{
	[ -n "${NGINX_PID-}" ] || return 0
	kill -TERM "$NGINX_PID"
	wait_gone "$NGINX_PID"
	unset NGINX_PID
}
