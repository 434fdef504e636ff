# HEDDLE_FLAGS: warnings, sanitizers and the flags every object is built with, in WARN_CFLAGS and
# SAN_CFLAGS; nothing here depends on the machine, so that one binary runs on any x86-64.
AC_DEFUN([HEDDLE_FLAGS], [
WARN_CFLAGS="-Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wvla -Wformat=2 -Wundef -Wno-unused-parameter -Wno-format-nonliteral"
AS_IF([test "$enable_werror" != no], [WARN_CFLAGS="$WARN_CFLAGS -Werror"])
SAN_CFLAGS=
# A fuzzer that cannot see which branches an input takes finds next to nothing: the libraries under a
# target are instrumented too. Without a sanitizer their references to it would stay open.
AS_IF([test "$enable_fuzz" != no && test "$enable_sanitize" = no],
	[enable_sanitize=address,undefined])
AS_IF([test "$enable_sanitize" != no],
	[SAN_CFLAGS="-fsanitize=$enable_sanitize -fno-omit-frame-pointer -fno-sanitize-recover=all"])
AS_IF([test "$enable_fuzz" != no], [SAN_CFLAGS="$SAN_CFLAGS -fsanitize=fuzzer-no-link"])
AS_CASE([$enable_sanitize], [*thread*],
	[AC_DEFINE([HEDDLE_TSAN], [1], [Define in ThreadSanitizer builds.])])
AM_CONDITIONAL([SANITIZE], [test "$enable_sanitize" != no])
# FP contraction is off everywhere: a product and its sum are fused only where the source says so
# (fmaf, intrinsics), because the order and rounding of every reduction is part of the contract.
WARN_CFLAGS="$WARN_CFLAGS -ffp-contract=off -fno-common"
AC_SUBST([WARN_CFLAGS])
AC_SUBST([SAN_CFLAGS])
])
