/*
 * Signs of life inside a step: the supervisor takes silence for death, so no op may be given more
 * rows or keys than it does in a moment, however long the step, and each is announced. And the cuts
 * that this takes change no bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model/harness_impl.h"
#include "tests/model/tiny.h"

#define ROWS      600
#define PASS_ROWS 37
#define TILE_ROWS 29

/* Every op of the backend, with what it was given noted down; thus one rank at a time. */
static struct {
	struct kern_ops real;
	uint64_t ops, unannounced;
	uint32_t most_rows; /* of the ops whose work is a product for each row */
	bool beat;
} seen;

static void note(uint32_t rows)
{
	seen.ops++;
	seen.unannounced += !seen.beat;
	seen.beat = false;
	seen.most_rows = MAX(seen.most_rows, rows);
}

#define rows_linear(a)         ((a)->rows)
#define rows_linear_grouped(a) ((a)->rows)
#define rows_moe_up(a)         ((a)->rows)
#define rows_moe_down(a)       ((a)->rows)
#define rows_hc_coef(a)        ((a)->rows)
#define rows_hc_pre(a)         ((a)->rows)
#define rows_hc_post(a)        ((a)->rows)
#define rows_hc_pre_norm(a)    ((a)->pre.rows)
#define rows_router(a)         ((a)->rows)
#define rows_logprob(a)        ((a)->rows)
#define rows_attention(a)      ((a)->batch->ntok)
#define rows_index_select(a)   ((a)->index.batch->ntok)

/* The rest moves rows in memory: one pass over them, whatever their number. */
#define rows_act_amax(a)       0
#define rows_embed(a)          0
#define rows_hc_expand(a)      0
#define rows_rmsnorm(a)        0
#define rows_hc_head(a)        0
#define rows_rope_angles(a)    0
#define rows_rope(a)           0
#define rows_hadamard(a)       0
#define rows_qat(a)            0
#define rows_kv_put(a)         0
#define rows_index_put(a)      0
#define rows_compress(a)       0
#define rows_attention_mass(a) 0
#define rows_index_score(a)    0
#define rows_index_merge(a)    0
#define rows_topk(a)           0
#define rows_q_norm_rope(a)    0
#define rows_kv_store(a)       0
#define rows_index_store(a)    0
#define rows_index_query(a)    0

#define KERN_OP(name, abs_tol, rel_tol, doc)                                                       \
	static int noted_##name(const struct kern_##name##_args *a, void *stream)                  \
	{                                                                                          \
		note(rows_##name(a));                                                              \
		return seen.real.name(a, stream);                                                  \
	}
#define KERN_FUSED(name, covers, doc) KERN_OP(name, 0, 0, doc)
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED

static void note_ops(struct rank *r)
{
	memset(&seen, 0, sizeof(seen));
	seen.real = r->ops;
#define KERN_OP(name, abs_tol, rel_tol, doc)                                                       \
	if (r->ops.name)                                                                           \
		r->ops.name = noted_##name;
#define KERN_FUSED(name, covers, doc) KERN_OP(name, 0, 0, doc)
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED
}

static void on_beat(void *user)
{
	(void)user;
	seen.beat = true;
}

static struct harness *open_tiny(const struct tiny *t, uint32_t world)
{
	struct conf conf = tiny_conf();

	return harness_open(&(struct harness_opts){
		.dir = t->dir, .conf = &conf, .world = world, .page_seed = 9, .shard_entries = 1});
}

/* As if it were a large model on a slow machine. */
static void cut_small(struct harness *h)
{
	for (uint32_t r = 0; r < h->world; r++) {
		struct shape *sh = &h->ranks[r]->sh;

		sh->pass_rows = PASS_ROWS;
		sh->tile_rows = TILE_ROWS;
		sh->tile_work = (uint64_t)sh->cfg.heads * 2 * KERN_HEAD * (KERN_WINDOW + 8) * 20;
	}
}

static void test_every_op_is_announced_and_bounded_in_a_long_step(void **state)
{
	const struct tiny *t = *state;
	struct harness *h = open_tiny(t, 1);
	struct msg_sample sampling = {.top_p = 1, .repetition_penalty = 1, .prompt_logprobs = 1};
	uint64_t seed = 11;
	uint32_t ids[ROWS];
	struct harness_part p = {.tokens = ids,
		.n = ROWS,
		.sample = true,
		.prompt_logprobs = true,
		.sampling = &sampling};

	tiny_prompt(t, &seed, ids, ROWS);
	cut_small(h);
	h->on_beat = on_beat;
	note_ops(h->ranks[0]);
	harness_run(h, &p, 1);
	assert_true(seen.ops > ROWS / TILE_ROWS * h->layers);
	assert_int_equal(seen.unannounced, 0);
	/* the head has tiles of its own */
	assert_true(seen.most_rows > 0);
	assert_true(seen.most_rows <= MAX(PASS_ROWS, (uint32_t)SHAPE_HEAD_ROWS));
	harness_close(h);
}

static void test_a_step_of_default_cuts_is_bounded(void **state)
{
	const struct tiny *t = *state;
	struct conf conf = tiny_conf();
	struct harness *h;
	uint64_t seed = 12;
	uint32_t *ids;
	enum { N = 4 * SHAPE_PASS_ROWS + 5 };

	conf.schedule_step_tokens = N;
	conf.schedule_max_context = N + 8;
	ids = calloc(N, sizeof(*ids));
	assert_non_null(ids);
	tiny_prompt(t, &seed, ids, N);
	h = harness_open(&(struct harness_opts){.dir = t->dir, .conf = &conf});
	note_ops(h->ranks[0]);
	harness_feed(h, 0, ids, N, 0, NULL);
	assert_true(seen.most_rows <= SHAPE_PASS_ROWS);
	free(ids);
	harness_close(h);
}

static void run_cuts_change_nothing(const struct tiny *t, uint32_t world)
{
	struct harness *a = open_tiny(t, world), *b = open_tiny(t, world);
	struct harness_out *want = harness_out_new(a, HARNESS_LOGITS | HARNESS_INDEX);
	struct harness_out *got = harness_out_new(b, HARNESS_LOGITS | HARNESS_INDEX);
	uint64_t seed = 13;
	uint32_t ids[ROWS];

	tiny_prompt(t, &seed, ids, ROWS);
	harness_feed(a, 0, ids, ROWS, 0, want);
	cut_small(b);
	harness_feed(b, 0, ids, ROWS, 0, got);
	assert_int_equal(harness_out_differs(want, got), -1);
	assert_int_equal(harness_choices_differ(want, got), -1);
	harness_out_free(want);
	harness_out_free(got);
	harness_close(a);
	harness_close(b);
}

static void test_cuts_change_no_bit(void **state)
{
	run_cuts_change_nothing(*state, 1);
	run_cuts_change_nothing(*state, getenv("HEDDLE_TEST_SUBSET") ? 2 : 4);
}

static int set_up(void **state)
{
	struct tiny *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	tiny_make(t, true, false);
	*state = t;
	return 0;
}

static int tear_down(void **state)
{
	tiny_remove(*state);
	free(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_op_is_announced_and_bounded_in_a_long_step),
		cmocka_unit_test(test_a_step_of_default_cuts_is_bounded),
		cmocka_unit_test(test_cuts_change_no_bit),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
