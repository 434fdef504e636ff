/*
 * heddle.ini on arbitrary bytes: must not crash, must say file and line when it refuses, and what
 * it accepts must print to a text that reads back to the same values. Built for libFuzzer by
 * --enable-fuzz; make check replays the corpus through it with replay.c.
 */
#include "config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a configuration says, as a file would hold it. */
static char *print(const struct conf_set *set, size_t *ret_len)
{
	char *text;
	FILE *f = open_memstream(&text, ret_len);

	if (!f || conf_dump(set, CONF_DUMP_EFFECTIVE, f) < 0 || fclose(f) != 0)
		abort();
	return text;
}

/* The values, without the origins that stand behind " ;". */
static void cut_origins(char *text)
{
	char *to = text, *at = text, *mark, *eol;

	for (; *at; at = *eol ? eol + 1 : eol) {
		eol = strchrnul(at, '\n');
		mark = memmem(at, (size_t)(eol - at), " ; ", 3);
		memmove(to, at, (size_t)((mark ? mark : eol) - at));
		to += (mark ? mark : eol) - at;
		*to++ = '\n';
	}
	*to = '\0';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct conf_set set, again;
	struct errbuf err = {0};
	char *first, *second;
	size_t n;

	if (conf_init(&set) < 0 || conf_init(&again) < 0)
		abort();
	if (conf_read(&set, "fuzz.ini", (const char *)data, size, &err) < 0) {
		if (strncmp(err.text, "fuzz.ini:", strlen("fuzz.ini:")) != 0)
			abort();
		goto out;
	}
	first = print(&set, &n);
	cut_origins(first);
	n = strlen(first);
	if (conf_read(&again, "again.ini", first, n, &err) < 0) {
		fprintf(stderr, "%s\n%s\n", err.text, first);
		abort();
	}
	second = print(&again, &n);
	cut_origins(second);
	if (strcmp(first, second) != 0) {
		fprintf(stderr, "first: %s\nsecond: %s\n", first, second);
		abort();
	}
	free(first);
	free(second);
out:
	conf_fini(&set);
	conf_fini(&again);
	return 0;
}
