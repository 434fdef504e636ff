# init.bash: what the tests of installation and init scripts share. Load after lib and life.

# never COMMAND...: fails when it succeeds. (A line that begins with ! never ends a case.)
never()
{
	if "$@"; then
		echo "should have failed: $*" >&2
		return 1
	fi
}

# Where the build installs to: $sbindir, $defaultdir, $systemdsystemunitdir, ...
paths()
{
	[ -f "$HEDDLE_BUILDDIR/tests/paths" ] || env -u MAKEFLAGS make -s -C "$HEDDLE_BUILDDIR" tests/paths
	. "$HEDDLE_BUILDDIR/tests/paths"
}
