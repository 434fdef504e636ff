#!/usr/bin/env bats
# What is installed: everything where it belongs, gone again after uninstall, and running from there; what
# the manual pages and units say is checked against the programs.

load lib
load life
load init

setup()
{
	D=$(mktemp -d /tmp/heddle.XXXXXX)
	SOCKET=$D/s
	paths
}

teardown()
{
	if [ -n "${PID-}" ] && kill -0 "$PID" 2>/dev/null; then
		kill -KILL "$PID"
		wait_gone "$PID"
	fi
	[ -n "${BATS_TEST_COMPLETED-}" ] || cat "$D/log" 2>/dev/null || :
	rm -rf "$D"
}

# build_make TARGET...: as an installer would call it, whatever make runs us
build_make()
{
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$HEDDLE_BUILDDIR" "$@" >"$D/make" 2>&1 || {
		cat "$D/make"
		return 1
	}
}

# installed DESTDIR: every file below it, without it
installed()
{
	(cd "$1" && find . ! -type d | sed 's/^\.//' | sort)
}

@test "install puts every file where it belongs, uninstall takes all of them away" {
	build_make install DESTDIR="$D/dest"
	installed "$D/dest" >"$D/have"
	{
		printf '%s\n' "$sbindir/heddled" "$bindir/heddle" "$libexecdir/heddle-worker" \
			"$sysconfdir/heddle/heddle.ini" "$sysconfdir/logrotate.d/heddle" "$defaultdir/heddle" \
			"$mandir/man1/heddle.1" "$mandir/man5/heddle.ini.5" "$mandir/man8/heddled.8"
		[ "$systemdsystemunitdir" = no ] || printf '%s\n' "$systemdsystemunitdir/heddle.service" \
			"$systemdsystemunitdir/heddle.socket" "$sysusersdir/heddle.conf" "$tmpfilesdir/heddle.conf"
		[ "$initscript" = no ] || echo "$initdir/heddle"
	} | sort >"$D/want"
	diff -u "$D/want" "$D/have"
	[ "$initscript" = no ] || [ -x "$D/dest$initdir/heddle" ]
	never grep -rl '@[a-z]*dir@' "$D/dest"
	build_make uninstall DESTDIR="$D/dest"
	same "$(installed "$D/dest")" ''
}

@test "what its owner has changed is neither written over nor removed" {
	build_make install DESTDIR="$D/dest"
	echo '# mine' >>"$D/dest$sysconfdir/heddle/heddle.ini"
	echo '# mine' >>"$D/dest$defaultdir/heddle"
	echo '# not mine' >>"$D/dest$mandir/man8/heddled.8"
	build_make install DESTDIR="$D/dest"
	same "$(tail -n 1 "$D/dest$sysconfdir/heddle/heddle.ini")" '# mine'
	same "$(tail -n 1 "$D/dest$defaultdir/heddle")" '# mine'
	never grep -q '# not mine' "$D/dest$mandir/man8/heddled.8"
	build_make uninstall DESTDIR="$D/dest"
	same "$(installed "$D/dest" | tr '\n' ' ')" "$defaultdir/heddle $sysconfdir/heddle/heddle.ini "
}

@test "what was installed runs: daemon, worker, client, with the installed configuration" {
	build_make install DESTDIR="$D/dest"
	sed -i "s|^#path =.*|path = $HEDDLE_SRCDIR/models/heddle-mini|; s|^#socket =.*|socket = $SOCKET|" \
		"$D/dest$sysconfdir/heddle/heddle.ini"
	HEDDLE_WORKER=$D/dest$libexecdir/heddle-worker "$D/dest$sbindir/heddled" -f \
		-c "$D/dest$sysconfdir/heddle/heddle.ini" >"$D/log" 2>&1 3>&- &
	PID=$!
	until_true health_is 200
	"$D/dest$bindir/heddle" -S "$SOCKET" chat -m 'Who are you?' -t 0 | grep -q .
	kill -TERM "$PID"
	left 0
	unset PID
}

@test "directories given at configure time are where it installs" {
	mkdir "$D/build"
	cd "$D/build"
	"$HEDDLE_SRCDIR/configure" -q --prefix=/usr --sysconfdir=/etc --with-initscript=openrc \
		--with-systemdsystemunitdir=/lib/systemd/system --disable-dependency-tracking CC="${CC-cc}"
	sed -n 's/^\(initscript\|initdir\|defaultdir\|systemdsystemunitdir\) = //p' Makefile | tr '\n' ' ' >"$D/dirs"
	same "$(cat "$D/dirs")" '${sysconfdir}/conf.d ${sysconfdir}/init.d openrc /lib/systemd/system '
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s install-data-local DESTDIR="$D/dest" >/dev/null
	[ -f "$D/dest/lib/systemd/system/heddle.service" ]
	[ -f "$D/dest/usr/lib/sysusers.d/heddle.conf" ]
	grep -q '^#!/sbin/openrc-run' "$D/dest/etc/init.d/heddle"
	[ -f "$D/dest/etc/conf.d/heddle" ]
	grep -q '^ExecStart=/usr/sbin/heddled ' "$D/dest/lib/systemd/system/heddle.service"
	code=0
	"$HEDDLE_SRCDIR/configure" -q --with-initscript=upstart 2>"$D/err" || code=$?
	[ "$code" != 0 ]
	grep -q 'sysv, openrc or no' "$D/err"
}

# ---- manual pages ----

pages()
{
	printf '%s\n' "$HEDDLE_BUILDDIR/etc/heddled.8" "$HEDDLE_BUILDDIR/etc/heddle.1" \
		"$HEDDLE_SRCDIR/etc/heddle.ini.5"
}

@test "mandoc has no warning for the manual pages" {
	command -v mandoc >/dev/null || skip "mandoc is not installed"
	mandoc -T lint -W warning $(pages)
	printf '.TH X 8\n.SH NAME\nno such macro\n.XY\n' >"$D/bad.8" # it would have one
	never mandoc -T lint -W warning "$D/bad.8" >/dev/null
}

@test "man has no warning for the manual pages" {
	command -v man >/dev/null && command -v groff >/dev/null || skip "man-db and groff are not installed"
	for page in $(pages); do
		# long paths of a prefix somewhere cannot be set well
		sed "s|$defaultdir|/etc/default|; s|$sysconfdir|/etc|; s|$libexecdir|/usr/libexec|" "$page" >"$D/page"
		same "$(MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings -l "$D/page" 2>&1 >/dev/null)" ''
	done
}

# options_of HELP: one a line: -x or --word, without their arguments
options_of()
{
	sed -n 's/^ *\(-.\), \(--[a-z-]*\).*/\1 \2/p; t; s/^ *\(--*[A-Za-z-]*\) .*/\1/p' "$1" | tr ' ' '\n'
}

# in_page PAGE OPTION [SECTION]: the option stands as a tag of its own in the page (or that part of it)
in_page()
{
	sed -n "${3:+/^\.SS $3/,/^\.S[SH]/}p" "$1" | sed 's/\\-/-/g; s/\\f[A-Z]//g' |
		grep -A1 '^\.TP' | grep -qE -- "(^\.B[A-Z]* |[ \"])$2([ \",]|\$)" && return
	echo "option $2 is not in ${1##*/} $3" >&2
	return 1
}

@test "every option that heddled -h names is in heddled(8), and no other" {
	"$HEDDLE_BUILDDIR/heddled" -h >"$D/help"
	options_of "$D/help" >"$D/options"
	[ "$(wc -l <"$D/options")" -ge 6 ]
	while read -r option; do
		in_page "$HEDDLE_BUILDDIR/etc/heddled.8" "$option" ''
	done <"$D/options"
	never in_page "$HEDDLE_BUILDDIR/etc/heddled.8" -x ''
	sed -n '/^\.SH OPTIONS/,/^\.SH SIGNALS/p' "$HEDDLE_BUILDDIR/etc/heddled.8" |
		sed -n 's/^\.BI* \\-\([a-zA-Z]\).*/-\1/p; s/^\.BR \\-\([a-zA-Z]\) .*/-\1/p' >"$D/documented"
	diff -u <(sort "$D/options") <(sort "$D/documented")
}

@test "every command and option that heddle --help names is in heddle(1), under its command" {
	"$HEDDLE_BUILDDIR/heddle" --help >"$D/help"
	sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' "$D/help" >"$D/commands"
	[ "$(wc -l <"$D/commands")" -ge 5 ]
	page=$HEDDLE_BUILDDIR/etc/heddle.1
	while read -r command; do
		grep -q "^\.SS heddle $command$" "$page" || same "$command" "in heddle(1)"
		grep -q "^\.B heddle $command$" "$page" || same "$command" "in the synopsis"
		"$HEDDLE_BUILDDIR/heddle" "$command" --help >"$D/help"
		options_of "$D/help" | grep -vxE -- '-h|--help' >"$D/options" || :
		while read -r option; do
			in_page "$page" "$option" "heddle $command" 2>/dev/null ||
				in_page "$page" "$option" 'Output of' 2>/dev/null ||
				in_page "$page" "$option" Sampling
		done <"$D/options"
	done <"$D/commands"
	never in_page "$page" --thinking 'heddle complete'
}

@test "every exit code of the programs is in both pages" {
	for code in $(sed -n 's/^\tEXIT_[A-Z_]* = \([0-9]*\),$/\1/p' "$HEDDLE_SRCDIR/shm/util.h"); do
		grep -q "^$code	" "$HEDDLE_BUILDDIR/etc/heddled.8"
		grep -q "^$code	" "$HEDDLE_BUILDDIR/etc/heddle.1"
		grep -q "^| $code |" "$HEDDLE_SRCDIR/docs/operations.md"
	done
}

# ---- units ----

@test "systemd-analyze finds nothing to say about the units" {
	command -v systemd-analyze >/dev/null || skip "systemd-analyze is not installed"
	# the programs are not where the unit says before they are installed
	sed "s|$sbindir/heddled|$HEDDLE_BUILDDIR/heddled|; s|^Documentation=.*||" \
		"$HEDDLE_BUILDDIR/etc/heddle.service" >"$D/heddle.service"
	sed "s|^Documentation=.*||" "$HEDDLE_SRCDIR/etc/heddle.socket" >"$D/heddle.socket"
	systemd-analyze verify --recursive-errors=no "$D/heddle.service" "$D/heddle.socket" >"$D/said" 2>&1 || {
		cat "$D/said"
		false
	}
	same "$(cat "$D/said")" ''
	# a mistake would be seen
	echo 'Tpye=notify' >>"$D/heddle.service"
	systemd-analyze verify --recursive-errors=no "$D/heddle.service" >"$D/said" 2>&1 || :
	grep -q 'Unknown key' "$D/said"
}

@test "every line of the sandbox has its reason above it" {
	awk '/^# ---- What it cannot do/ { on = 1; next } /^# ---- What is left out/ { on = 0 }
		on && /^$/ { seen = 0 } on && /^#/ { seen = 1 }
		on && /^[A-Z]/ && !seen { print "no reason: " $0; bad = 1 } END { exit bad }' \
		"$HEDDLE_BUILDDIR/etc/heddle.service"
	for left_out in MemoryDenyWriteExecute PrivateDevices PrivateNetwork PrivateUsers ProcSubset; do
		grep -q "^#.*$left_out.*:" "$HEDDLE_BUILDDIR/etc/heddle.service"
		never grep -q "^$left_out=" "$HEDDLE_BUILDDIR/etc/heddle.service"
	done
}

@test "the sandbox is worth its name" {
	command -v systemd-analyze >/dev/null || skip "systemd-analyze is not installed"
	systemd-analyze security --offline=true --threshold=30 "$HEDDLE_BUILDDIR/etc/heddle.service" >"$D/said" || {
		cat "$D/said"
		false
	}
}

@test "sysusers.d and tmpfiles.d say what they should" {
	command -v systemd-sysusers >/dev/null || skip "systemd is not installed"
	mkdir -p "$D/root/etc"
	systemd-sysusers --root="$D/root" "$HEDDLE_SRCDIR/etc/heddle.sysusers" >/dev/null 2>&1
	grep -q '^heddle:.*:/var/lib/heddle:/usr/sbin/nologin$' "$D/root/etc/passwd"
	grep -q '^heddle:' "$D/root/etc/group"
	[ "$(id -u)" = 0 ] || skip "the rest needs root, to give directories to others"
	systemd-tmpfiles --root="$D/root" --create "$HEDDLE_SRCDIR/etc/heddle.tmpfiles"
	uid=$(sed -n 's/^heddle:[^:]*:\([0-9]*\):.*/\1/p' "$D/root/etc/passwd")
	same "$(cd "$D/root" && stat -c '%n %a %u' run/heddle var/log/heddle var/lib/heddle | tr '\n' ' ')" \
		"run/heddle 755 $uid var/log/heddle 750 $uid var/lib/heddle 755 0 "
}

@test "logrotate takes the configuration" {
	command -v logrotate >/dev/null || skip "logrotate is not installed"
	sed 's/^\tsu heddle heddle$//; s/heddle heddle$//' "$HEDDLE_SRCDIR/etc/heddle.logrotate" >"$D/conf"
	logrotate -d -s "$D/state" "$D/conf" >"$D/said" 2>&1
	never grep -i error "$D/said"
}
