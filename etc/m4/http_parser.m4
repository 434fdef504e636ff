# HEDDLE_HTTP_PARSER: llhttp where it is packaged, else http_parser (the same callbacks, older).
AC_DEFUN([HEDDLE_HTTP_PARSER], [
PKG_CHECK_MODULES([LLHTTP], [libllhttp],
	[AC_DEFINE([HAVE_LLHTTP], [1], [Define to use llhttp instead of http_parser.])
	 HTTP_PARSER_CFLAGS=$LLHTTP_CFLAGS; HTTP_PARSER_LIBS=$LLHTTP_LIBS],
	[AC_CHECK_HEADER([http_parser.h], [],
		[AC_MSG_ERROR([neither llhttp nor http_parser is installed (Debian: libhttp-parser-dev)])])
	 HTTP_PARSER_CFLAGS=; HTTP_PARSER_LIBS=-lhttp_parser])
AC_SUBST([HTTP_PARSER_CFLAGS])
AC_SUBST([HTTP_PARSER_LIBS])
])
