/*
 * Both tokenizers against Hugging Face's: ids of every case, and back; in pieces; from several
 * threads; without compiled patterns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/token_impl.h"
#include "tests/unit/text_fixture.h"

#define THREADS 3

static struct tokenizer *toks[2];
static struct fixture_cases cases;

static void complain(int t, uint32_t i, const uint8_t *text, size_t len,
	const struct token_ids *got, const uint8_t *want, size_t n)
{
	fprintf(stderr, "tokenizer %d, case %u:", t, i);
	for (size_t k = 0; k < MIN(len, (size_t)80); k++)
		fprintf(stderr, text[k] >= 0x20 && text[k] < 0x7f ? "%c" : "\\x%02x", text[k]);
	fprintf(stderr, "\n  got ");
	for (size_t k = 0; k < MIN(got->len, (size_t)40); k++)
		fprintf(stderr, " %u", got->ids[k]);
	fprintf(stderr, "\n  want");
	for (size_t k = 0; k < MIN(n, (size_t)40); k++)
		fprintf(stderr, " %u", fixture_u32(want, k));
	fprintf(stderr, "\n");
}

/* Encodes every case with one scratch; returns how many differ. */
static unsigned compare(int t, const struct tokenizer *tok)
{
	const uint8_t *text = cases.texts, *want = cases.expect[t].ids;
	struct token_scratch *s = token_scratch_new(tok);
	struct token_ids ids = {0};
	unsigned wrong = 0;

	for (uint32_t i = 0; i < cases.count; i++) {
		size_t len = fixture_u32(cases.lens, i), n = fixture_u32(cases.expect[t].lens, i);
		bool same;

		ids.len = 0;
		same = tokenizer_encode(tok, s, (const char *)text, len, NULL, false, &ids) == 0 &&
		       ids.len == n;
		for (size_t k = 0; same && k < n; k++)
			same = ids.ids[k] == fixture_u32(want, k);
		if (!same && wrong++ < 5)
			complain(t, i, text, len, &ids, want, n);
		text += len;
		want += n * 4;
	}
	token_ids_free(&ids);
	token_scratch_free(s);
	return wrong;
}

static void test_encode_equals_hugging_face(void **state)
{
	(void)state;
	assert_true(cases.count >= 5000);
	for (int t = 0; t < 2; t++)
		assert_int_equal(compare(t, toks[t]), 0);
}

static void test_encode_without_jit_gives_the_same_ids(void **state)
{
	struct tokenizer plain;

	(void)state;
	for (int t = 0; t < 2; t++) {
		plain = *toks[t];
		for (uint32_t i = 0; i < plain.splits_len; i++)
			plain.splits[i].jit = false;
		assert_false(tokenizer_has_jit(&plain));
		assert_int_equal(compare(t, &plain), 0);
	}
}

struct job {
	int t;
	unsigned wrong;
};

static void *run_job(void *arg)
{
	struct job *job = arg;

	job->wrong = compare(job->t, toks[job->t]);
	return NULL;
}

static void test_encode_from_threads_equals_hugging_face(void **state)
{
	pthread_t threads[THREADS];
	struct job jobs[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++) {
		jobs[i] = (struct job){.t = i == 0};
		assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(jobs[i].wrong, 0);
	}
}

/* Ids of case i, in ids. */
static void expected(int t, uint32_t i, const uint8_t **want, struct token_ids *ids)
{
	ids->len = 0;
	for (size_t k = 0; k < fixture_u32(cases.expect[t].lens, i); k++)
		assert_int_equal(token_ids_push(ids, fixture_u32(*want, k)), 0);
	*want += ids->len * 4;
}

static void test_decode_gives_the_text_back(void **state)
{
	(void)state;
	for (int t = 0; t < 2; t++) {
		const uint8_t *text = cases.texts, *want = cases.expect[t].ids;
		struct token_ids ids = {0};

		for (uint32_t i = 0; i < cases.count; i++) {
			size_t len = fixture_u32(cases.lens, i), got_len;
			char *got;

			expected(t, i, &want, &ids);
			got = tokenizer_decode(toks[t], ids.ids, ids.len, false, &got_len);
			assert_non_null(got);
			assert_int_equal(got_len, len);
			assert_memory_equal(got, text, len);
			free(got);
			text += len;
		}
		token_ids_free(&ids);
	}
}

/* Streams ids, checking that each piece is whole characters, and compares with one-shot decode. */
static void check_stream(const struct tokenizer *tok, const uint32_t *ids, size_t n, bool skip)
{
	struct token_stream st;
	size_t want_len, at = 0, len;
	char *want = tokenizer_decode(tok, ids, n, skip, &want_len);
	const char *piece;

	assert_non_null(want);
	token_stream_init(&st, tok, skip);
	for (size_t k = 0; k <= n; k++) {
		if (k < n)
			assert_int_equal(token_stream_push(&st, ids[k], &piece, &len), 0);
		else
			assert_int_equal(token_stream_finish(&st, &piece, &len), 0);
		assert_true(at + len <= want_len);
		assert_memory_equal(want + at, piece, len);
		assert_true(token_utf8_valid(piece, len));
		at += len;
	}
	assert_int_equal(at, want_len);
	token_stream_fini(&st);
	free(want);
}

static void test_stream_equals_decode(void **state)
{
	(void)state;
	for (int t = 0; t < 2; t++) {
		const uint8_t *want = cases.expect[t].ids;
		struct token_ids ids = {0};

		for (uint32_t i = 0; i < cases.count; i++) {
			expected(t, i, &want, &ids);
			check_stream(toks[t], ids.ids, ids.len, i & 1);
		}
		token_ids_free(&ids);
	}
}

/* Ids in an order that no text has: broken characters everywhere. */
static void test_stream_of_random_ids_equals_decode(void **state)
{
	uint64_t rng = fixture_seed();
	uint32_t ids[24];

	(void)state;
	for (int round = 0; round < 20000; round++) {
		const struct tokenizer *tok = toks[round & 1];
		size_t n = fixture_random(&rng) % ARRAY_LEN(ids);

		for (size_t k = 0; k < n; k++)
			ids[k] = fixture_random(&rng) & 1
					 ? tok->byte_id[0x80 + fixture_random(&rng) % 0x80]
					 : (uint32_t)(fixture_random(&rng) % (tok->vocab + 2));
		check_stream(tok, ids, n, round & 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encode_equals_hugging_face),
		cmocka_unit_test(test_encode_without_jit_gives_the_same_ids),
		cmocka_unit_test(test_encode_from_threads_equals_hugging_face),
		cmocka_unit_test(test_decode_gives_the_text_back),
		cmocka_unit_test(test_stream_equals_decode),
		cmocka_unit_test(test_stream_of_random_ids_equals_decode),
	};
	int r;

	toks[0] = fixture_mini();
	toks[1] = fixture_deepseek();
	fixture_cases_open(&cases);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fixture_cases_close(&cases);
	tokenizer_free(toks[0]);
	tokenizer_free(toks[1]);
	return r;
}
