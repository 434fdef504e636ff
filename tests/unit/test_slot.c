#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "shm/slot.h"
#include "shm/stats.h"

static const struct worker_capacity good = {
	.classes = {{.tokens_per_page = 64, .count = 10, .bytes_per_page = 4096},
		{.tokens_per_page = 256, .count = 5, .bytes_per_page = 8192}, {0}},
	.max_context = 4096,
	.max_sequences = 8,
	.vocab = 1000,
	.step_tokens = 512,
	.dims = "2 layers",
};

static void test_new_slot_reads_as_starting(void **state)
{
	struct worker_slot slot = {0};
	struct slot_view v;
	struct worker_capacity c;
	struct worker_error e;

	(void)state;
	assert_int_equal(slot_read(&slot, &v), 0);
	assert_int_equal(v.state, WORKER_STARTING);
	assert_int_equal(v.pid, 0);
	assert_int_equal(slot_read_capacity(&slot, &c, NULL), -EAGAIN);
	assert_int_equal(slot_read_error(&slot, &e), -EAGAIN);
}

static void test_progress_grows_with_each_sign_of_life(void **state)
{
	struct worker_slot slot = {0};
	struct slot_view v;
	mono_ns_t start = mono_now();

	(void)state;
	slot_begin(&slot, 7);
	slot_load(&slot, 100, 900);
	assert_int_equal(slot_read(&slot, &v), 0);
	assert_int_equal(v.pid, getpid());
	assert_int_equal(v.generation, 7);
	assert_int_equal(v.progress, 1);
	assert_int_equal(v.stage, STAGE_LOAD);
	assert_int_equal(v.load_done_bytes, 100);
	assert_int_equal(v.load_total_bytes, 900);
	slot_beat(&slot, 12, STAGE_LAYER, 3);
	assert_int_equal(slot_read(&slot, &v), 0);
	assert_int_equal(v.progress, 2);
	assert_int_equal(v.step, 12);
	assert_int_equal(v.layer, 3);
	assert_true(v.progress_ns >= start && v.progress_ns <= mono_now());
	assert_string_equal(slot_stage_name(v.stage), "layer");
}

static void test_unknown_words_of_a_worker_are_refused(void **state)
{
	struct worker_slot slot = {0};
	struct slot_view v;

	(void)state;
	memset(&v, 0x5a, sizeof(v));
	slot.state = WORKER__STATES;
	assert_int_equal(slot_read(&slot, &v), -EBADMSG);
	assert_int_equal(slot_state(&slot), WORKER_FAILED);
	slot.state = WORKER_READY;
	slot.stage = STAGE__COUNT;
	assert_int_equal(slot_read(&slot, &v), -EBADMSG);
	assert_int_equal(v.pid, 0x5a5a5a5a);
	assert_string_equal(slot_state_name((enum worker_state)99), "?");
	assert_string_equal(slot_stage_name((enum worker_stage)99), "?");
}

static void test_capacity_comes_back_once_ready(void **state)
{
	struct worker_slot slot = {0};
	struct worker_capacity c;

	(void)state;
	slot_set_state(&slot, WORKER_LOADING);
	assert_int_equal(slot_read_capacity(&slot, &c, NULL), -EAGAIN);
	slot_set_ready(&slot, &good);
	assert_int_equal(slot_read_capacity(&slot, &c, NULL), 0);
	assert_memory_equal(&c, &good, sizeof(c));
}

static void test_impossible_capacity_is_refused_by_field(void **state)
{
	struct worker_slot slot = {0};
	struct worker_capacity c, out;
	struct errbuf err;

	(void)state;
#define REFUSE(change, word)                                                                       \
	c = good;                                                                                  \
	change;                                                                                    \
	slot_set_ready(&slot, &c);                                                                 \
	assert_int_equal(slot_read_capacity(&slot, &out, &err), -EBADMSG);                         \
	assert_non_null(strstr(err.text, word))
	REFUSE(c.max_context = 0, "max_context");
	REFUSE(c.max_context = UINT64_MAX, "max_context");
	REFUSE(c.max_sequences = 0, "max_sequences");
	REFUSE(c.max_sequences = UINT32_MAX, "max_sequences");
	REFUSE(c.vocab = 0, "vocab");
	REFUSE(c.step_tokens = 0, "step_tokens");
	REFUSE(c.classes[PAGE_RAW].tokens_per_page = 0, "raw");
	REFUSE(c.classes[PAGE_CSA].count = 0, "pages");
	REFUSE(c.classes[PAGE_CSA].tokens_per_page = UINT32_MAX, "tokens_per_page");
	REFUSE(c.classes[PAGE_CSA].bytes_per_page = UINT64_MAX, "bytes_per_page");
	c = good;
	memset(c.dims, 'x', sizeof(c.dims));
	slot_set_ready(&slot, &c);
	assert_int_equal(slot_read_capacity(&slot, &out, &err), 0);
	assert_int_equal(strlen(out.dims), sizeof(out.dims) - 1);
}

static void test_error_text_is_made_printable(void **state)
{
	struct errbuf err = {.text = "no\nfile\x1b[31m", .exit_code = EXIT_NO_INPUT};
	struct worker_slot slot = {0};
	struct worker_error e;

	(void)state;
	slot_set_failed(&slot, -ENOENT, &err);
	assert_int_equal(slot_read_error(&slot, &e), 0);
	assert_string_equal(e.text, "no file [31m");
	assert_int_equal(e.error, -ENOENT);
	assert_int_equal(e.exit_code, EXIT_NO_INPUT);
	memset(slot.error.text, 'x', sizeof(slot.error.text));
	slot.error.exit_code = 4000;
	slot.error.error = 5;
	assert_int_equal(slot_read_error(&slot, &e), 0);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
	assert_int_equal(e.exit_code, 0);
	assert_int_equal(e.error, -EIO);
}

static void test_stats_rows_carry_names_and_sums(void **state)
{
	struct stats_row rows[STATS__COUNT];
	struct worker_stats s = {0};
	size_t i;

	(void)state;
	stats_add(&s, tokens, 5);
	stats_add(&s, tokens, 1ull << 40);
	stats_add(&s, nan_rows, 1);
	stats_read(&s, rows);
	for (i = 0; i < STATS__COUNT; i++) {
		uint64_t want = 0;

		if (strcmp(rows[i].name, "tokens") == 0)
			want = (1ull << 40) + 5;
		if (strcmp(rows[i].name, "nan_rows") == 0)
			want = 1;
		assert_int_equal(rows[i].value, want);
		assert_true(rows[i].doc[0]);
	}
	assert_int_equal(stats_get(&s, nan_rows), 1);
	assert_true(STATS__COUNT >= 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new_slot_reads_as_starting),
		cmocka_unit_test(test_progress_grows_with_each_sign_of_life),
		cmocka_unit_test(test_unknown_words_of_a_worker_are_refused),
		cmocka_unit_test(test_capacity_comes_back_once_ready),
		cmocka_unit_test(test_impossible_capacity_is_refused_by_field),
		cmocka_unit_test(test_error_text_is_made_printable),
		cmocka_unit_test(test_stats_rows_carry_names_and_sums),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
