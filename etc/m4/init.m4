# HEDDLE_INIT: where the files for service managers go. The defaults lie below the prefix, where
# systemd also looks when that is /usr or /usr/local.
AC_DEFUN([HEDDLE_INIT], [
AC_ARG_WITH([systemdsystemunitdir],
	[AS_HELP_STRING([--with-systemdsystemunitdir=DIR],
		[systemd units (PREFIX/lib/systemd/system; no: none)])],
	[], [with_systemdsystemunitdir='${prefix}/lib/systemd/system'])
AS_IF([test "$with_systemdsystemunitdir" = yes],
	[with_systemdsystemunitdir='${prefix}/lib/systemd/system'])
AC_SUBST([systemdsystemunitdir], [$with_systemdsystemunitdir])
AM_CONDITIONAL([SYSTEMD], [test "$with_systemdsystemunitdir" != no])
AC_ARG_WITH([sysusersdir],
	[AS_HELP_STRING([--with-sysusersdir=DIR], [sysusers.d files (PREFIX/lib/sysusers.d)])],
	[], [with_sysusersdir='${prefix}/lib/sysusers.d'])
AC_SUBST([sysusersdir], [$with_sysusersdir])
AC_ARG_WITH([tmpfilesdir],
	[AS_HELP_STRING([--with-tmpfilesdir=DIR], [tmpfiles.d files (PREFIX/lib/tmpfiles.d)])],
	[], [with_tmpfilesdir='${prefix}/lib/tmpfiles.d'])
AC_SUBST([tmpfilesdir], [$with_tmpfilesdir])

AC_ARG_WITH([initscript],
	[AS_HELP_STRING([--with-initscript=KIND],
		[sysv, openrc or no (openrc where openrc-run is and systemd is not, else sysv)])],
	[], [with_initscript=auto])
AS_IF([test "$with_initscript" = auto || test "$with_initscript" = yes],
	[AS_IF([test -x /sbin/openrc-run && test ! -x /lib/systemd/systemd],
		[with_initscript=openrc], [with_initscript=sysv])])
AS_CASE([$with_initscript], [sysv | openrc | no], [],
	[AC_MSG_ERROR([--with-initscript=$with_initscript: it is sysv, openrc or no])])
AC_SUBST([initscript], [$with_initscript])
AM_CONDITIONAL([INITSCRIPT], [test "$with_initscript" != no])
AC_ARG_WITH([initdir],
	[AS_HELP_STRING([--with-initdir=DIR], [the init script (SYSCONFDIR/init.d)])],
	[], [with_initdir='${sysconfdir}/init.d'])
AC_SUBST([initdir], [$with_initdir])
AC_ARG_WITH([defaultdir],
	[AS_HELP_STRING([--with-defaultdir=DIR],
		[settings of scripts and units (SYSCONFDIR/default; for openrc SYSCONFDIR/conf.d)])],
	[], [AS_IF([test "$with_initscript" = openrc],
		[with_defaultdir='${sysconfdir}/conf.d'], [with_defaultdir='${sysconfdir}/default'])])
AC_SUBST([defaultdir], [$with_defaultdir])
])
