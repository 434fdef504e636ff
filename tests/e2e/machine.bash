# machine.bash: a machine of its own for tests that install heddle where it belongs and become other
# users: namespaces over this one's files, with everything written thrown away. Load after lib, life
# and init.
#
#   machine_refusal               prints why there can be none here: it needs root and the right to mount
#   machine_start [COMMAND...]    boots it; $MACHINE is its PID 1 as seen from here
#   inside COMMAND...             runs something in it, as root
#   machine_stop
#
# With MACHINE_CGROUP=yes it has a cgroup tree of its own, for systemd.

machine_refusal()
{
	if [ "$(id -u)" != 0 ]; then
		echo "needs root, for namespaces and users"
	elif ! unshare --mount --pid --fork mount --make-rprivate / 2>/dev/null; then
		echo "needs the right to make namespaces and to mount"
	elif [ -n "${MACHINE_CGROUP-}" ] &&
		! { mkdir "$(machine_cgroup)" && rmdir "$(machine_cgroup)"; } 2>/dev/null; then
		echo "needs a cgroup2 tree that can be written to"
	fi
}

machine_cgroup()
{
	echo "$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)/heddle-test-$$"
}

machine_start()
{
	local cgroup='' init="$HEDDLE_SRCDIR/tests/e2e/machine-init"

	if [ -n "${MACHINE_CGROUP-}" ]; then
		cgroup=$(machine_cgroup)
		mkdir "$cgroup"
	fi
	MACHINE_DIR=$(mktemp -d /tmp/heddle-machine.XXXXXX)
	CGROUP=$cgroup
	[ $# -gt 0 ] || set -- bash -c 'while :; do sleep 3600; done' # it reaps, too
	(
		[ -z "$cgroup" ] || echo "$BASHPID" >"$cgroup/cgroup.procs"
		export HEDDLE_BUILDDIR HEDDLE_SRCDIR MACHINE_CGROUP
		exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child \
			"$init" "$MACHINE_DIR" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
	) >"$MACHINE_DIR.log" 2>&1 3>&- &
	MACHINE_SHELL=$!
	export MACHINE_DIR MACHINE_SHELL CGROUP
	until_true machine_is_up || {
		cat "$MACHINE_DIR.log"
		return 1
	}
	export MACHINE
}

machine_is_up()
{
	MACHINE=$(pgrep -P "$MACHINE_SHELL") && [ -e "/proc/$MACHINE/root/run/machine-is-up" ]
}

inside()
{
	nsenter -t "$MACHINE" -m -p -u -i -C env -i LC_ALL=C.UTF-8 TERM=dumb \
		PATH="${sbindir-}:${bindir-}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
		"$@" 3>&-
}

machine_stop()
{
	local dir

	[ -n "${MACHINE_DIR-}" ] || return 0
	[ -z "${MACHINE-}" ] || kill -KILL "$MACHINE" 2>/dev/null || :
	[ -z "${MACHINE_SHELL-}" ] || wait_gone "$MACHINE_SHELL"
	if [ -n "$CGROUP" ]; then
		for dir in $(find "$CGROUP" -depth -type d); do
			until_true rmdir "$dir" 2>/dev/null # its last processes are being reaped
		done
	fi
	rm -rf "$MACHINE_DIR" "$MACHINE_DIR.log"
	unset MACHINE MACHINE_DIR
}

# machine_install: make install, in the machine
machine_install()
{
	inside make -s -C "$HEDDLE_BUILDDIR" install >"$MACHINE_DIR.log" 2>&1 || {
		cat "$MACHINE_DIR.log"
		return 1
	}
	# a prefix below somebody's home is for everybody, here
	inside sh -c 'at=$1; while [ "$at" != / ]; do chmod a+x "$at"; at=$(dirname "$at"); done' - "$sbindir"
}
