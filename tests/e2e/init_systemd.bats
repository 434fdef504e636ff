#!/usr/bin/env bats
# The units, run by a real systemd as PID 1 of a machine of its own, with the whole sandbox, real workers
# and the bundled model. (init.bats checks their text.)

load lib
load life
load init
load machine

setup_file()
{
	export MACHINE_CGROUP=yes REFUSAL
	paths
	REFUSAL=$(refusal)
	[ -z "$REFUSAL" ] || return 0
	systemd_machine
	inside cp "$sysconfdir/heddle/heddle.ini" /root/heddle.ini
}

teardown_file()
{
	machine_stop
}

setup()
{
	[ -z "$REFUSAL" ] || skip "$REFUSAL"
	D=$(mktemp -d /tmp/heddle.XXXXXX)
	paths
	SINCE=$(inside date +%s.%N) # what is older in the journal is another case's
}

teardown()
{
	[ -z "$REFUSAL" ] || return 0
	if [ -z "${BATS_TEST_COMPLETED-}" ]; then
		inside journalctl --no-pager -o short-monotonic --since "@$SINCE" | tail -n 60
		inside systemctl --no-pager status heddle heddle.socket || :
	fi
	inside systemctl stop heddle.socket heddle.service
	inside systemctl reset-failed
	inside rm -rf /run/systemd/system/heddle.service.d /run/systemd/system/heddle.socket.d
	inside cp /root/heddle.ini "$sysconfdir/heddle/heddle.ini"
	inside systemctl daemon-reload
	rm -rf "$D"
}

# What a boot would start that is not ours to start: it reaches for the kernel, the network, the clock.
MASKED="systemd-modules-load.service systemd-sysctl.service modprobe@.service systemd-udevd.service
	systemd-udev-trigger.service systemd-random-seed.service systemd-timesyncd.service
	systemd-update-utmp.service sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount
	sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount tmp.mount timers.target
	systemd-tmpfiles-setup.service" # it empties /tmp, where the trees may lie

# Why systemd cannot be tried here; nothing if it can.
refusal()
{
	if [ "$systemdsystemunitdir" = no ]; then
		echo "configured with --with-systemdsystemunitdir=no"
	elif [ ! -x /lib/systemd/systemd ]; then
		echo "systemd is not installed"
	elif [ "$(systemctl --version | awk 'NR == 1 { print $2 }')" -lt 252 ]; then
		echo "systemd is older than 252"
	elif ldd "$HEDDLE_BUILDDIR/heddled" | grep -q 'lib[at]san'; then
		echo "a sanitizer needs what the sandbox takes away: ptrace, personality"
	else
		machine_refusal
	fi
}

systemd_machine()
{
	local unit

	# the masks lie where generators would put theirs, so that nothing of the machine is written to
	machine_start sh -c 'mkdir -p /run/systemd/system; cd /run/systemd/system
		for unit in $2; do ln -s /dev/null "$unit"; done
		exec env container=heddle-test "$1" --system --unit=basic.target --show-status=no' - \
		/lib/systemd/systemd "$(echo $MASKED)"
	until_true inside systemctl --quiet is-active basic.target 2>/dev/null
	machine_install
	for unit in heddle.service heddle.socket; do # a prefix of one's own is not on its path
		case $systemdsystemunitdir in
		/usr/local/lib/systemd/system | /usr/lib/systemd/system | /lib/systemd/system) ;;
		*) inside cp "$systemdsystemunitdir/$unit" /etc/systemd/system/ ;;
		esac
	done
	inside systemd-sysusers "$sysusersdir/heddle.conf"
	inside systemd-tmpfiles --create "$tmpfilesdir/heddle.conf"
	inside cp -r "$HEDDLE_SRCDIR/models/heddle-mini" /var/lib/heddle/mini
	inside sed -i "s|^#path =.*|path = /var/lib/heddle/mini|; s|^#workers =.*|workers = 2|" \
		"$sysconfdir/heddle/heddle.ini"
	inside systemctl daemon-reload
}

# systemd PROPERTY: of the service
property()
{
	inside systemctl show -P "$1" heddle
}

property_is()
{
	[ "$(property "$1")" = "$2" ]
}

journal_says()
{
	inside journalctl -q -o cat -u heddle --since "@$SINCE" --grep "$1" >/dev/null
}

# drop_in UNIT LINES: changes the unit for this case
drop_in()
{
	printf "$2\n" | inside sh -c "mkdir -p /run/systemd/system/$1.d && cat >/run/systemd/system/$1.d/test.conf"
	inside systemctl daemon-reload
}

ini()
{
	inside sh -c "printf '$1' >>'$sysconfdir/heddle/heddle.ini'"
}

# A step of the bundled model takes milliseconds: this many tokens take some seconds.
long_request()
{
	inside curl -s --unix-socket /run/heddle/heddle.sock -H 'content-type: application/json' \
		-d "{\"prompt\": \"a\", \"max_tokens\": $1, \"ignore_eos\": true}" -w ' %{http_code}' \
		http://heddle/v1/completions
}

sequences_run()
{
	inside heddle status --json | grep -qE '"running": ?1'
}

@test "systemd runs it: ready, asked, reloaded, killed, stopped" {
	inside systemctl start heddle
	same "$(property ActiveState) $(property StatusText)" "active serving"
	pid=$(property MainPID)
	same "$(inside ps -C heddled,heddle-worker -o user= | sort | uniq -c | tr -s ' ')" ' 3 heddle'
	same "$(inside stat -c '%A %U:%G' /run/heddle /run/heddle/heddle.sock /var/log/heddle | tr '\n' ' ')" \
		'drwxr-xr-x heddle:heddle srw-rw---- heddle:heddle drwxr-x--- heddle:heddle '
	inside heddle chat -m 'Who are you?' -t 0 >"$D/answer"
	[ -s "$D/answer" ]

	# nothing of what it needs was taken away: not the JIT, the cores, the memory policy
	same "$(inside journalctl -q -o cat -u heddle --since "@$SINCE" -p warning)" ''
	never journal_says 'several times slower'
	# and what it needs not, was
	same "$(inside sh -c "grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/$pid/status" | tr -s '\t\n' ' ')" \
		'CapBnd: 0000000000000000 NoNewPrivs: 1 Seccomp: 2 '
	same "$(inside sh -c "nsenter -t $pid -m sh -c 'echo >/etc/x || echo >/usr/x || echo >/root/x'" 2>&1 |
		grep -c 'Read-only\|Permission')" 3

	inside systemctl reload heddle
	journal_says 'configuration reloaded'
	property_is StatusText serving

	inside systemctl kill --kill-who=main -s KILL heddle
	until_true journal_says 'Scheduled restart job'
	until_true property_is ActiveState active
	[ "$pid" != "$(property MainPID)" ]
	inside heddle chat -m 'Who are you?' -t 0 >"$D/again"
	same "$(cat "$D/again")" "$(cat "$D/answer")"

	inside systemctl stop heddle
	same "$(property ActiveState) $(property Result)" "inactive success"
	[ -z "$(inside ps -C heddled,heddle-worker -o pid=)" ]
	[ -z "$(inside ls /run/heddle)" ]
}

@test "a bad file is refused by reload, stands in the status, and is no reason to restart" {
	inside systemctl start heddle
	ini 'nonsense = 1\n'
	never inside systemctl reload heddle 2>"$D/said"
	journal_says 'heddle.ini:[0-9]+: unknown key nonsense'
	same "$(property ActiveState) $(property StatusText)" "active serving"
	# what only heddled sees
	inside systemctl kill --kill-who=main -s HUP heddle
	until_true property_is ActiveState active
	until_true journal_says 'keeping the old configuration'
	[[ "$(property StatusText)" == "serving; not reloaded: "*"heddle.ini:"* ]]
	inside systemctl stop heddle
	never inside systemctl start heddle 2>"$D/said"
	same "$(property Result) $(property ExecMainStatus) $(property NRestarts)" "exit-code 78 0"
	journal_says '^heddled: .*heddle.ini:[0-9]+: unknown key nonsense'
}

@test "a loop that does not turn is ended by the watchdog, and back" {
	drop_in heddle.service '[Service]\nWatchdogSec=2'
	inside systemctl start heddle
	pid=$(property MainPID)
	inside kill -STOP "$pid"
	until_true journal_says 'Watchdog timeout'
	until_true property_is NRestarts 1
	until_true property_is StatusText serving
	[ "$pid" != "$(property MainPID)" ]
	inside heddle status >/dev/null
}

@test "stop lets requests finish, beyond TimeoutStopSec where api.drain_seconds is longer" {
	drop_in heddle.service '[Service]\nTimeoutStopSec=2\nWatchdogSec=4'
	ini '[api]\ndrain_seconds = 5s\n'
	inside systemctl start heddle
	long_request 60000 >"$D/long" 3>&- &
	until_true sequences_run
	begin=$SECONDS
	inside systemctl stop heddle
	[ $((SECONDS - begin)) -ge 4 ]
	same "$(property Result)" success
	until_true grep -q '503$' "$D/long" # an answer, not a broken connection
	grep -q 'shutting down' "$D/long"
}

@test "the socket unit starts it, keeps clients over a restart, and its TCP sibling is served" {
	port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
	drop_in heddle.socket '[Socket]\nListenStream=127.0.0.1:'"$port"
	inside systemctl start heddle.socket
	same "$(inside stat -c '%A %U:%G' /run/heddle/heddle.sock)" 'srw-rw---- heddle:heddle'
	property_is ActiveState inactive
	# the first client starts it, and is told to come back or served, as it is ready or not
	inside curl -s -o /dev/null -w '%{http_code}' --unix-socket /run/heddle/heddle.sock http://heddle/health |
		grep -E '^(200|503)$'
	until_true property_is StatusText serving
	inside curl -sf "http://127.0.0.1:$port/health" >/dev/null
	inside systemctl restart heddle
	inside heddle chat -m 'Who are you?' -t 0 | grep -q .
	inside stat /run/heddle/heddle.sock >/dev/null
	inside systemctl stop heddle.socket heddle.service
	never inside test -e /run/heddle/heddle.sock
}

@test "without MemoryDenyWriteExecute being left out, it would still serve, and say what it lost" {
	drop_in heddle.service '[Service]\nMemoryDenyWriteExecute=yes'
	inside systemctl start heddle
	journal_says 'several times slower'
	inside heddle chat -m 'Who are you?' -t 0 | grep -q .
}
