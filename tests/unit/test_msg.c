#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shm/clock.h"
#include "shm/msg.h"

/* A step of two sequences: a chunk of 3 of a longer prompt, and a decode of its previous sample. */
static const struct msg_step step_counts = {
	.nseq = 2, .nsample = 2, .nbias = 3, .ntoken = 7, .npage = 5};

static size_t make_step(uint8_t *buf, size_t cap)
{
	struct msg_step_view v;
	int64_t bytes = msg_step_layout(buf, cap, &step_counts, 9, &v);
	struct msg_seq *seqs = (struct msg_seq *)(uintptr_t)v.seqs;
	struct msg_sample *samples = (struct msg_sample *)(uintptr_t)v.samples;
	uint32_t *tokens = (uint32_t *)(uintptr_t)v.tokens;
	uint32_t *pages = (uint32_t *)(uintptr_t)v.pages, i;

	assert_true(bytes > 0);
	seqs[0] = (struct msg_seq){.slot = 4,
		.flags = SEQ_FIRST | SEQ_PROMPT_LOGPROBS,
		.n = 3,
		.page_n = {2, 1, 1},
		.sample = 1};
	seqs[1] = (struct msg_seq){.slot = 5,
		.flags = SEQ_PREV | SEQ_SAMPLE | SEQ_LAST,
		.pos = 1000,
		.n = 1,
		.token_off = 4,
		.page_off = 4,
		.page_n = {1, 0, 0},
		.raw_release = 1,
		.sample = 0};
	samples[0] = (struct msg_sample){.bias_off = 1,
		.bias_n = 2,
		.banned_off = 5,
		.banned_n = 2,
		.logprobs = 20,
		.prompt_len = 900};
	samples[1] = (struct msg_sample){.prompt_logprobs = 20, .prompt_len = 10};
	for (i = 0; i < step_counts.ntoken; i++)
		tokens[i] = 100 + i;
	for (i = 0; i < step_counts.npage; i++)
		pages[i] = 200 + i;
	return (size_t)bytes;
}

static size_t make_result(uint8_t *buf, size_t cap)
{
	const struct msg_result counts = {.ntoken = 3, .nalt = 7, .run_ns = 5, .comm_ns = 4};
	struct msg_result_view v;
	int64_t bytes = msg_result_layout(buf, cap, &counts, 12, &v);
	struct msg_token *tokens = (struct msg_token *)(uintptr_t)v.tokens;

	assert_true(bytes > 0);
	tokens[0] = (struct msg_token){.slot = 1, .flags = MSG_TOKEN_PROMPT, .alt_n = 4};
	tokens[1] = (struct msg_token){.slot = 2, .flags = MSG_TOKEN_NAN, .alt_off = 4, .alt_n = 3};
	tokens[2] = (struct msg_token){.slot = 3, .alt_off = 7};
	return (size_t)bytes;
}

/* A copy in memory of exactly its size, so that ASan sees the first byte outside. */
static void *exact(const void *bytes, size_t n)
{
	void *copy = malloc(n ? n : 1);

	memcpy(copy, bytes, n);
	return copy;
}

static uint64_t touched;

static void touch(const void *p, size_t n)
{
	const uint8_t *b = p;

	while (n--)
		touched += *b++;
}

/* Reads all that a parsed step says is there. */
static void touch_step(const struct msg_step_view *v)
{
	uint32_t i, c;

	for (i = 0; i < v->step->nseq; i++) {
		const struct msg_seq *q = &v->seqs[i];
		uint64_t pages = 0;

		for (c = 0; c < PAGE__COUNT; c++)
			pages += q->page_n[c];
		touch(v->tokens + q->token_off, q->n * sizeof(uint32_t));
		touch(v->pages + q->page_off, pages * sizeof(uint32_t));
		if (q->flags & (SEQ_SAMPLE | SEQ_PROMPT_LOGPROBS))
			touch(v->samples + q->sample, sizeof(*v->samples));
	}
	for (i = 0; i < v->step->nsample; i++) {
		touch(v->biases + v->samples[i].bias_off, v->samples[i].bias_n * 8ull);
		touch(v->tokens + v->samples[i].banned_off, v->samples[i].banned_n * 4ull);
	}
}

static void touch_result(const struct msg_result_view *v)
{
	uint32_t i;

	for (i = 0; i < v->result->ntoken; i++)
		touch(v->alts + v->tokens[i].alt_off, v->tokens[i].alt_n * sizeof(*v->alts));
}

static void test_step_round_trip_keeps_every_part(void **state)
{
	_Alignas(8) uint8_t buf[2048];
	struct msg_step_view v;
	size_t bytes;

	(void)state;
	memset(buf, 0xa5, sizeof(buf));
	bytes = make_step(buf, sizeof(buf));
	assert_int_equal(bytes, 16 + 24 + 2 * 48 + 2 * 72 + 3 * 8 + 32 + 24);
	assert_int_equal(msg_step_layout(NULL, 0, &step_counts, 9, &v), bytes);
	assert_int_equal(buf[bytes], 0xa5);
	assert_int_equal(msg_hdr_parse(buf, bytes, NULL), MSG_STEP);
	assert_int_equal(msg_step_parse(buf, bytes, &v, NULL), 0);
	assert_int_equal(v.hdr->step, 9);
	assert_int_equal(v.step->ntoken, 7);
	assert_int_equal(v.seqs[1].pos, 1000);
	assert_int_equal(v.samples[0].banned_n, 2);
	assert_int_equal(v.tokens[6], 106);
	assert_int_equal(v.pages[4], 204);
	assert_int_equal((uintptr_t)v.pages % 8, 0);
	touch_step(&v);
}

static void test_result_round_trip_keeps_every_part(void **state)
{
	_Alignas(8) uint8_t buf[1024];
	struct msg_result_view v;
	size_t bytes = make_result(buf, sizeof(buf));

	(void)state;
	assert_int_equal(bytes, 16 + 24 + 3 * 40 + 7 * 8);
	assert_int_equal(msg_result_parse(buf, bytes, &v, NULL), 0);
	assert_int_equal(v.hdr->step, 12);
	assert_int_equal(v.result->run_ns, 5);
	assert_int_equal(v.tokens[2].slot, 3);
	touch_result(&v);
}

static void test_empty_step_and_result_are_messages(void **state)
{
	const struct msg_step none = {0};
	const struct msg_result nothing = {0};
	_Alignas(8) uint8_t buf[64];
	struct msg_step_view v;
	struct msg_result_view rv;

	(void)state;
	assert_int_equal(msg_step_layout(buf, sizeof(buf), &none, 1, &v), 40);
	assert_int_equal(msg_step_parse(buf, 40, &v, NULL), 0);
	assert_int_equal(msg_result_layout(buf, sizeof(buf), &nothing, 1, &rv), 40);
	assert_int_equal(msg_result_parse(buf, 40, &rv, NULL), 0);
}

static void test_layout_too_large_returns_emsgsize(void **state)
{
	struct msg_step n = {.ntoken = UINT32_MAX, .npage = UINT32_MAX};
	struct msg_result m = {.ntoken = UINT32_MAX, .nalt = UINT32_MAX};
	_Alignas(8) uint8_t buf[400];
	struct msg_step_view v;
	struct msg_result_view rv;
	int64_t need = msg_step_layout(NULL, 0, &step_counts, 9, &v);

	(void)state;
	assert_int_equal(msg_step_layout(NULL, 0, &n, 1, &v), -EMSGSIZE);
	assert_int_equal(msg_result_layout(NULL, 0, &m, 1, &rv), -EMSGSIZE);
	memset(&n, 0xff, sizeof(n));
	assert_int_equal(msg_step_layout(NULL, 0, &n, 1, &v), -EMSGSIZE);
	assert_int_equal(msg_step_layout(buf, (size_t)need - 1, &step_counts, 1, &v), -EMSGSIZE);
	assert_int_equal(msg_step_layout(buf, (size_t)need, &step_counts, 1, &v), need);
	assert_int_equal(msg_stop_build(buf, 15, 1), -EMSGSIZE);
	assert_int_equal(msg_failed_build(buf, 263, 1, -EIO, "x"), -EMSGSIZE);
}

static void test_stop_and_failed_round_trip(void **state)
{
	_Alignas(8) uint8_t buf[512];
	struct msg_failed f;
	char text[1000];
	int64_t bytes = msg_stop_build(buf, sizeof(buf), 3);

	(void)state;
	assert_int_equal(bytes, 16);
	assert_int_equal(msg_hdr_parse(buf, 16, NULL), MSG_STOP);
	memset(text, 'y', sizeof(text));
	text[999] = '\0';
	text[3] = '\n';
	bytes = msg_failed_build(buf, sizeof(buf), 3, -EIO, text);
	assert_int_equal(bytes, 264);
	assert_int_equal(msg_failed_parse(buf, 264, &f, NULL), 0);
	assert_int_equal(f.error, -EIO);
	assert_int_equal(strlen(f.text), 239);
	assert_int_equal(f.text[3], ' ');
	memset(buf + 24, 'x', 240);
	assert_int_equal(msg_failed_parse(buf, 264, &f, NULL), -EBADMSG);
	assert_string_equal(msg_type_name(MSG_FAILED), "FAILED");
	assert_string_equal(msg_type_name(3), "?");
}

static void test_every_other_length_is_refused(void **state)
{
	_Alignas(8) uint8_t buf[2048];
	size_t bytes, n;
	int fix;

	(void)state;
	memset(buf, 0, sizeof(buf));
	bytes = make_step(buf, sizeof(buf));
	/* with the header's own length left as it is, and made to agree */
	for (fix = 0; fix < 2; fix++)
		for (n = 0; n <= bytes + 64; n++) {
			struct msg_step_view v;
			void *copy;

			if (n == bytes)
				continue;
			if (fix)
				((struct msg_hdr *)buf)->bytes = (uint32_t)n;
			copy = exact(buf, n);
			assert_int_equal(msg_step_parse(copy, n, &v, NULL), -EBADMSG);
			free(copy);
		}
}

static void test_misaligned_and_foreign_messages_are_refused(void **state)
{
	_Alignas(8) uint8_t buf[2056];
	struct msg_result_view rv;
	struct msg_step_view v;
	struct msg_failed f;
	struct errbuf err;
	size_t bytes = make_step(buf, 2048);

	(void)state;
	assert_int_equal(msg_result_parse(buf, bytes, &rv, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "STEP instead of RESULT"));
	assert_int_equal(msg_failed_parse(buf, bytes, &f, &err), -EBADMSG);
	((struct msg_hdr *)buf)->type = 7;
	assert_int_equal(msg_hdr_parse(buf, bytes, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "type 7"));
	make_step(buf, 2048);
	memmove(buf + 4, buf, bytes);
	assert_int_equal(msg_step_parse(buf + 4, bytes, &v, &err), -EBADMSG);
}

static void test_each_bound_of_a_step_is_refused_by_name(void **state)
{
	_Alignas(8) uint8_t buf[2048];
	struct msg_step_view v;
	struct errbuf err;
	size_t bytes = make_step(buf, sizeof(buf));
	struct msg_seq *q;
	struct msg_sample *s;
	struct msg_step *n;

	(void)state;
	assert_int_equal(msg_step_parse(buf, bytes, &v, NULL), 0);
	q = (struct msg_seq *)(uintptr_t)v.seqs;
	s = (struct msg_sample *)(uintptr_t)v.samples;
	n = (struct msg_step *)(uintptr_t)v.step;
#define REFUSE(change, word)                                                                       \
	change;                                                                                    \
	assert_int_equal(msg_step_parse(buf, bytes, &v, &err), -EBADMSG);                          \
	assert_non_null(strstr(err.text, word));                                                   \
	make_step(buf, sizeof(buf));                                                               \
	assert_int_equal(msg_step_parse(buf, bytes, &v, NULL), 0)
	REFUSE(q[0].n = 0, "no tokens");
	REFUSE(q[0].flags |= 32, "flags");
	REFUSE(q[0].n = 8, "tokens");
	REFUSE(q[0].n = UINT32_MAX, "tokens");
	REFUSE(q[0].token_off = 5, "tokens");
	REFUSE(q[1].token_off = 7, "tokens");
	REFUSE(q[1].token_off = UINT32_MAX, "tokens");
	REFUSE(q[1].n = 2, "last sample");
	REFUSE(q[1].page_off = 5, "pages");
	REFUSE(q[0].page_n[PAGE_HCA] = UINT32_MAX, "pages");
	REFUSE((q[0].page_n[0] = q[0].page_n[1] = 0x80000000u, q[0].page_n[2] = 1), "pages");
	REFUSE(q[1].sample = 2, "samples by");
	REFUSE(q[1].pos = UINT64_MAX, "position");
	REFUSE(s[0].bias_n = 3, "biases");
	REFUSE(s[0].bias_off = UINT32_MAX, "biases");
	REFUSE(s[0].banned_n = UINT32_MAX, "bans");
	REFUSE(s[0].logprobs = 21, "alternatives");
	REFUSE(s[1].prompt_logprobs = 21, "alternatives");
	REFUSE(n->flags = 1, "flags");
	REFUSE(n->nseq = UINT32_MAX, "counts");
	REFUSE(n->npage = 7, "counts");
}

static void test_each_bound_of_a_result_is_refused(void **state)
{
	_Alignas(8) uint8_t buf[1024];
	struct msg_result_view v;
	size_t bytes = make_result(buf, sizeof(buf));
	struct msg_token *t;

	(void)state;
	assert_int_equal(msg_result_parse(buf, bytes, &v, NULL), 0);
	t = (struct msg_token *)(uintptr_t)v.tokens;
#define REFUSE_RESULT(change)                                                                      \
	change;                                                                                    \
	assert_int_equal(msg_result_parse(buf, bytes, &v, NULL), -EBADMSG);                        \
	make_result(buf, sizeof(buf));                                                             \
	assert_int_equal(msg_result_parse(buf, bytes, &v, NULL), 0)
	REFUSE_RESULT(t[2].alt_n = 1);
	REFUSE_RESULT(t[2].alt_off = 8);
	REFUSE_RESULT((t[0].alt_off = UINT32_MAX, t[0].alt_n = 2));
	REFUSE_RESULT(t[0].alt_n = 21);
	REFUSE_RESULT(t[1].flags = 4);
	REFUSE_RESULT(((struct msg_result *)(uintptr_t)v.result)->ntoken = UINT32_MAX);
}

/* Random damage: refused, or everything it says lies within (ASan looks on). */
static void test_mutated_messages_are_refused_or_within_bounds(void **state)
{
	uint64_t x = mono_now() | 1;
	const char *given = getenv("HEDDLE_TEST_SEED");
	_Alignas(8) uint8_t buf[2][1024];
	size_t bytes[2] = {make_step(buf[0], 1024), make_result(buf[1], 1024)};
	long round, accepted = 0;
	int i, n;

	(void)state;
	if (given)
		x = strtoull(given, NULL, 0);
	printf("# HEDDLE_TEST_SEED=%llu\n", (unsigned long long)x);
	for (round = 0; round < 200000; round++) {
		int kind = (int)(round & 1);
		uint8_t *copy = exact(buf[kind], bytes[kind]);
		struct msg_result_view rv;
		struct msg_step_view v;

		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		n = (int)(x % 4) + 1;
		for (i = 0; i < n; i++) {
			static const uint8_t edges[] = {0, 1, 2, 0x7f, 0x80, 0xff};

			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			copy[(x >> 8) % bytes[kind]] = x & 1 ? edges[(x >> 1) % 6] : (uint8_t)x;
		}
		if (kind == 0 && msg_step_parse(copy, bytes[0], &v, NULL) == 0) {
			touch_step(&v);
			accepted++;
		}
		if (kind == 1 && msg_result_parse(copy, bytes[1], &rv, NULL) == 0) {
			touch_result(&rv);
			accepted++;
		}
		free(copy);
	}
	/* both happen: the mutations are neither all harmless nor all fatal */
	assert_true(accepted > 1000 && accepted < 199000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_step_round_trip_keeps_every_part),
		cmocka_unit_test(test_result_round_trip_keeps_every_part),
		cmocka_unit_test(test_empty_step_and_result_are_messages),
		cmocka_unit_test(test_layout_too_large_returns_emsgsize),
		cmocka_unit_test(test_stop_and_failed_round_trip),
		cmocka_unit_test(test_every_other_length_is_refused),
		cmocka_unit_test(test_misaligned_and_foreign_messages_are_refused),
		cmocka_unit_test(test_each_bound_of_a_step_is_refused_by_name),
		cmocka_unit_test(test_each_bound_of_a_result_is_refused),
		cmocka_unit_test(test_mutated_messages_are_refused_or_within_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
