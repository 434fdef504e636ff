#define _GNU_SOURCE
#include "tests/bench/bench.h"

#include <ctype.h>
#include <stdlib.h>
#include <sys/resource.h>

_Noreturn void bench_usage(const char *usage)
{
	fprintf(stderr, "usage: %s%s%s\n", program_invocation_short_name, *usage ? " " : "", usage);
	exit(EXIT_USAGE_ERR);
}

struct bench_args bench_args(int argc, char **argv, int most, const char *usage)
{
	struct bench_args a = {usage, argc - 1, argv + 1};

	if (a.n > most)
		bench_usage(usage);
	for (int i = 0; i < a.n; i++)
		if (a.at[i][0] == '-')
			bench_usage(usage);
	return a;
}

unsigned bench_number(const struct bench_args *a, int i, unsigned most, unsigned otherwise)
{
	unsigned long value;
	char *end;

	if (i >= a->n)
		return otherwise;
	if (!isdigit((unsigned char)a->at[i][0])) /* strtoul() takes spaces and signs */
		bench_usage(a->usage);
	errno = 0;
	value = strtoul(a->at[i], &end, 10);
	if (errno || *end || value < 1 || value > most)
		bench_usage(a->usage);
	return (unsigned)value;
}

_Noreturn void bench_die(const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
	exit(EXIT_OS_ERR);
}

void *bench_alloc(size_t bytes)
{
	void *p = aligned_alloc(64, ALIGN_UP(bytes + 1, (size_t)64));

	if (!p)
		bench_die("no memory for %zu bytes", bytes);
	return p;
}

void *bench_zeroes(size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		bench_die("no memory for %zu bytes", bytes);
	return p;
}

/* cmocka's exit(-1) */
static void say_failed(int status, void *user)
{
	struct rlimit as;

	(void)user;
	if ((status & 0xff) != 0xff)
		return;
	fprintf(stderr, "%s: the tests' harness under it failed", program_invocation_short_name);
	if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY)
		fprintf(stderr, "; memory is limited to %llu MiB (ulimit -v)",
			(unsigned long long)as.rlim_cur >> 20);
	fputc('\n', stderr);
	_Exit(EXIT_OS_ERR);
}

void bench_on_harness(void)
{
	if (on_exit(say_failed, NULL) != 0)
		bench_die("no memory");
}
