/*
 * The HTTP parser on arbitrary bytes: must not crash, and must find the same requests however the
 * bytes are cut. The first byte of the input seeds the cuts. Built for libFuzzer by --enable-fuzz;
 * make check replays the corpus through it with replay.c.
 */
#include <stdint.h>

#include "tests/fuzz/http_describe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum { MAX_BODY = 4096, MAX_PIECES = 64 };
	const char *bytes = (const char *)data + 1;
	size_t ends[MAX_PIECES], n = 0, len, at = 0;
	char *whole, *cut;
	uint32_t seed;

	if (size < 1)
		return 0;
	len = size - 1;
	seed = data[0] + 1u;
	whole = describe_fed(bytes, &len, 1, MAX_BODY);
	while (n < MAX_PIECES - 1 && at < len) {
		seed = seed * 1103515245u + 12345u;
		at = MIN(len, at + 1 + (seed >> 16) % (data[0] % 32 + 1u));
		ends[n++] = at;
	}
	ends[n++] = len;
	cut = describe_fed(bytes, ends, n, MAX_BODY);
	if (strcmp(whole, cut) != 0) {
		fprintf(stderr, "whole: %s\ncut: %s\n", whole, cut);
		abort();
	}
	free(whole);
	free(cut);
	return 0;
}
