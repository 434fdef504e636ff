/*
 * Small things every folder needs: an error sentence for people, attribute names, arithmetic.
 */
#ifndef SHM_UTIL_H
#define SHM_UTIL_H

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ARRAY_LEN(a)                 (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(p, type, field) ((type *)((char *)(p)-offsetof(type, field)))
#define MUST_CHECK                   __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a)            __attribute__((format(printf, f, a)))
#define MIN(a, b)                    ((a) < (b) ? (a) : (b))
#define MAX(a, b)                    ((a) > (b) ? (a) : (b))
#define ALIGN_UP(x, a)               (((x) + (a)-1) / (a) * (a))
#define DIV_UP(x, a)                 (((x) + (a)-1) / (a))

/*
 * One sentence for the person who must act: what was wrong, where, what would be right. Functions
 * that can fail for such a reason take a `struct errbuf *err` (may be NULL) and fill it before they
 * return -errno; the caller decides whether to log it. `exit_code` is a sysexits(3) code when the
 * failure is one that should end a program with it, else 0.
 */
struct errbuf {
	char text[512];
	int exit_code;
};

enum {
	EXIT_USAGE_ERR = 64,
	EXIT_DATA_ERR = 65,
	EXIT_NO_INPUT = 66,
	EXIT_UNAVAILABLE_ERR = 69,
	EXIT_SOFTWARE_ERR = 70,
	EXIT_OS_ERR = 71,
	EXIT_NO_PERM = 77,
	EXIT_CONFIG_ERR = 78,
};

/* Fills err (if not NULL) and returns ret, so that `return err_set(err, -EINVAL, ...)` reads well.
 */
PRINTF_LIKE(4, 5)
static inline int err_set(struct errbuf *err, int ret, int exit_code, const char *fmt, ...)
{
	va_list ap;

	if (err) {
		va_start(ap, fmt);
		vsnprintf(err->text, sizeof(err->text), fmt, ap);
		va_end(ap);
		err->exit_code = exit_code;
	}
	return ret;
}

#endif
