/*
 * Files for the tests of text: the bundled tokenizer, DeepSeek's, and the expected ids.
 */
#ifndef TESTS_TEXT_FIXTURE_H
#define TESTS_TEXT_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "coordinator/token.h"

/* The file's bytes with a NUL after them, unpacked where its name ends in ".xz"; `path` is relative
 * to the source tree. Ends the program, with 77 where xz is missing. */
char *fixture_read(const char *path, size_t *ret_len);

struct tokenizer *fixture_mini(void);
struct tokenizer *fixture_deepseek(void);

/* cases.bin.xz: count texts, and for each of the two tokenizers (mini, DeepSeek) its ids. */
struct fixture_cases {
	char *data;
	uint32_t count;
	const uint8_t *lens, *texts;
	struct {
		const uint8_t *lens, *ids;
	} expect[2];
};
void fixture_cases_open(struct fixture_cases *c);
void fixture_cases_close(struct fixture_cases *c);
uint32_t fixture_u32(const uint8_t *p, size_t index);

/* A seed for fresh random inputs, printed; HEDDLE_SEED repeats one. */
uint64_t fixture_seed(void);
uint64_t fixture_random(uint64_t *state);

#endif
