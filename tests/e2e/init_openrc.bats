#!/usr/bin/env bats
# The OpenRC script by OpenRC itself, in a machine of its own. OpenRC need not be installed: where its
# Debian packages lie in $HEDDLE_OPENRC_DEBS (./bootstrap check fetches them), they are unpacked there.

load lib
load life
load init
load machine

setup()
{
	D=$(mktemp -d /tmp/heddle.XXXXXX)
	paths
}

teardown()
{
	[ -n "${BATS_TEST_COMPLETED-}" ] || cat "$D"/* 2>/dev/null || :
	machine_stop
	rm -rf "$D"
}

# openrc_machine: one that OpenRC has booted, as far as a service can tell
openrc_machine()
{
	local debs=${HEDDLE_OPENRC_DEBS-$HEDDLE_BUILDDIR/debs} deb refusal

	refusal=$(machine_refusal)
	[ -z "$refusal" ] || skip "$refusal"
	command -v openrc-run >/dev/null || ls "$debs"/openrc_*.deb >/dev/null 2>&1 ||
		skip "OpenRC is not installed, and no packages of it are in $debs"
	machine_start
	if ! command -v openrc-run >/dev/null; then
		for deb in "$debs"/*.deb; do
			dpkg-deb --fsys-tarfile "$deb" | inside tar -x -C / --keep-directory-symlink
		done
		inside ldconfig
	fi
	# as its init.sh would
	inside sh -c "mkdir -p /etc/runlevels/default; cd /run; mkdir openrc; cd openrc; mkdir daemons \
		exclusive failed hotplugged inactive init.d options started starting stopping tmp wasinactive"
	inside touch /run/openrc/softlevel
	# what a booted machine has, and this one not
	printf '#!/sbin/openrc-run\nstart() { :; }\n' | inside tee /etc/init.d/localmount >/dev/null
	inside chmod +x /etc/init.d/localmount
	machine_install
	inside rm -f "$initdir/heddle" # of the other kind, perhaps, and OpenRC looks below /usr/local too
	inside install -m 755 "$HEDDLE_BUILDDIR/etc/heddle.openrc" /etc/init.d/heddle
	inside install -D -m 644 "$HEDDLE_SRCDIR/etc/heddle.default" /etc/conf.d/heddle
	inside useradd -r -d /var/lib/heddle -s /usr/sbin/nologin heddle
	inside sed -i "s|^#path =.*|path = /var/lib/heddle/mini|; s|^#workers =.*|workers = 2|
		s|^#target =.*|target = /var/log/heddle/heddled.log|" "$sysconfdir/heddle/heddle.ini"
	inside sh -c "mkdir -p /var/lib/heddle && cp -r '$HEDDLE_SRCDIR/models/heddle-mini' /var/lib/heddle/mini"
}

# rc CODE ACTION
rc()
{
	local want=$1 code=0

	shift
	inside rc-service heddle "$@" >"$D/said" 2>&1 || code=$?
	same "$code" "$want" || {
		cat "$D/said"
		return 1
	}
}

log_gets()
{
	inside timeout 20 sh -c "until grep -q '$1' /var/log/heddle/heddled.log; do sleep 0.1; done"
}

@test "OpenRC starts, reloads, reopens, restarts and stops it, and sees it crash" {
	openrc_machine
	rc 3 status
	rc 0 start
	rc 0 status
	grep -q started "$D/said"
	same "$(inside ps -C heddled,heddle-worker -o user= | sort | uniq -c | tr -s ' ')" ' 3 heddle'
	same "$(inside stat -c '%A %U:%G' /run/heddle /run/heddle/heddle.sock /var/log/heddle | tr '\n' ' ')" \
		'drwxr-xr-x heddle:heddle srw-rw---- heddle:heddle drwxr-x--- heddle:heddle '
	inside heddle chat -m 'Who are you?' -t 0 >"$D/answer"
	[ -s "$D/answer" ]
	rc 0 reload
	log_gets 'configuration reloaded'
	rc 0 reopen
	log_gets 'log reopened'
	first=$(inside cat /run/heddled.pid)
	rc 0 restart
	[ "$first" != "$(inside cat /run/heddled.pid)" ]
	inside sh -c 'kill -KILL $(cat /run/heddled.pid)'
	inside timeout 20 sh -c 'while pgrep -x heddled; do sleep 0.1; done' >/dev/null
	rc 32 status
	grep -q crashed "$D/said"
	rc 0 zap
	rc 0 start
	rc 0 stop
	rc 3 status
	never inside pgrep -x heddled
}

@test "OpenRC's start fails with heddled's own line; a bad file is not reloaded" {
	openrc_machine
	inside sh -c "echo 'nonsense = 1' >>'$sysconfdir/heddle/heddle.ini'"
	rc 1 start
	grep -q "heddled: $sysconfdir/heddle/heddle.ini:[0-9]*: " "$D/said"
	rc 3 status
	inside sed -i '$d' "$sysconfdir/heddle/heddle.ini"
	rc 0 start
	inside sh -c "echo 'nonsense = 1' >>'$sysconfdir/heddle/heddle.ini'"
	rc 78 reload
	grep -q "heddle.ini:[0-9]*: " "$D/said"
	rc 0 status
	inside heddle -S /run/heddle/heddle.sock status >/dev/null
	rc 0 stop
}

@test "the shells that may be sh take it" {
	for sh in dash bash 'busybox sh'; do
		command -v ${sh%% *} >/dev/null || continue
		$sh -n "$HEDDLE_BUILDDIR/etc/heddle.openrc"
	done
}
