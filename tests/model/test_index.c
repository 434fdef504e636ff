/*
 * The indexer's choices under each key format, against f32 keys: what the answers of the bundled
 * model cannot show (it survives losing half its index heads). For every query that leaves entries
 * out:
 *
 *   changed   entries of the referee's choice that are missing from the format's
 *   lost      share of the referee's attention, all heads together, that lay on those
 *   error     root mean square of the score differences, over that of the scores; in the first CSA
 *             layer, whose inputs are the same in both runs
 *
 * Bounds: the three formats must differ from the referee in the measure of their precision, no more
 * (a wrong layout or scale changes hundreds) and no less (a format that is not in use changes
 * none).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/fixture.h"
#include "tests/model/harness.h"

struct quality {
	double changed, lost, error; /* means over the queries */
	uint64_t queries, error_queries;
	uint32_t topk;
};

static const struct {
	const char *name;
	enum conf_index_key key;
} formats[] = {
	{"bf16", CONF_INDEX_KEY_BF16}, {"fp8", CONF_INDEX_KEY_FP8}, {"fp4", CONF_INDEX_KEY_FP4}};

/* Positions of `entry` in a choice, or -1; choices are ascending. */
static int64_t find(const struct harness_choice *c, uint32_t entry)
{
	uint32_t lo = 0, hi = c->n, mid;

	while (lo < hi) {
		mid = lo + (hi - lo) / 2;
		if (c->entries[mid] == entry)
			return mid;
		if (c->entries[mid] < entry)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

static void add_query(struct quality *q, const struct harness_choice *want,
	const struct harness_choice *got, bool same_inputs)
{
	double mass = 0, gone = 0, square = 0, apart = 0, d;
	int64_t at;
	uint32_t i;

	assert_int_equal(want->n, got->n);
	for (i = 0; i < want->n; i++) {
		mass += (double)want->mass[i];
		at = find(got, want->entries[i]);
		if (at < 0) {
			q->changed++;
			gone += (double)want->mass[i];
			continue;
		}
		d = (double)got->scores[at] - (double)want->scores[i];
		apart += d * d;
		square += (double)want->scores[i] * (double)want->scores[i];
	}
	q->lost += mass > 0 ? gone / mass : 0;
	q->queries++;
	if (same_inputs) {
		q->error += square > 0 ? sqrt(apart / square) : 0;
		q->error_queries++;
	}
}

/* The choices at positions first .. n-1. */
static struct harness_out *choices(
	const char *dir, enum conf_index_key key, const uint32_t *ids, uint32_t first, uint32_t n)
{
	struct conf conf = harness_conf();
	struct harness *h;
	struct harness_out *out;

	conf.attention_index_key = key;
	h = harness_open(&(struct harness_opts){.dir = dir, .conf = &conf, .threads = 2});
	out = harness_out_new(h, HARNESS_INDEX);
	harness_feed(h, 0, ids, first, 0, NULL);
	harness_feed(h, 0, ids + first, n - first, 0, out);
	harness_close(h);
	return out;
}

/* Compares the choices of positions first .. n-1, in every CSA layer, where something was left out.
 */
static struct quality compare(
	const struct harness_out *want, const struct harness_out *got, uint32_t first)
{
	struct quality q = {0};
	uint32_t layer, first_csa = 0;
	uint64_t t;

	while (!want->choices[first * want->layers + first_csa].n)
		first_csa++;
	for (t = first; t < want->n; t++) {
		for (layer = 0; layer < want->layers; layer++) {
			const struct harness_choice *c = &want->choices[t * want->layers + layer];

			if (!c->n || !c->scores) /* not CSA, or all visible entries were taken */
				continue;
			q.topk = c->n;
			add_query(
				&q, c, &got->choices[t * want->layers + layer], layer == first_csa);
		}
	}
	assert_true(q.queries > 0);
	q.changed /= (double)q.queries;
	q.lost /= (double)q.queries;
	q.error /= (double)q.error_queries;
	return q;
}

static void measure(const char *name, const char *dir, const uint32_t *ids, uint32_t n,
	uint32_t first, struct quality ret[ARRAY_LEN(formats)])
{
	struct harness_out *want = choices(dir, CONF_INDEX_KEY_F32, ids, first, n);
	size_t i;

	for (i = 0; i < ARRAY_LEN(formats); i++) {
		struct harness_out *got = choices(dir, formats[i].key, ids, first, n);

		ret[i] = compare(want, got, first);
		print_message("  %-11s %-4s changed %7.3f of %u, attention lost %.2e, score error "
			      "%.1e (%llu queries)\n",
			name, formats[i].name, ret[i].changed, ret[i].topk, ret[i].lost,
			ret[i].error, (unsigned long long)ret[i].queries);
		harness_out_free(got);
	}
	harness_out_free(want);
}

/* The longest prompt of the bundled model's golden.json that has at most `most` tokens. */
static uint32_t *mini_prompt(uint32_t most, uint32_t *ret_n)
{
	const char *src = getenv("HEDDLE_SRCDIR");
	const json_t *ids = NULL, *row;
	json_error_t why;
	json_t *doc;
	char path[1200];
	uint32_t *out;
	size_t i;

	snprintf(path, sizeof(path), "%s/models/heddle-mini/golden.json", src ? src : ".");
	doc = json_load_file(path, 0, &why);
	if (!doc)
		fail_msg("%s: %s", path, why.text);
	json_array_foreach (doc, i, row) {
		const json_t *p = json_object_get(row, "prompt_ids");

		if (json_array_size(p) <= most && json_array_size(p) > json_array_size(ids))
			ids = p;
	}
	*ret_n = (uint32_t)json_array_size(ids);
	out = calloc(*ret_n, sizeof(*out));
	assert_non_null(out);
	for (i = 0; i < *ret_n; i++)
		out[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
	json_decref(doc);
	return out;
}

static void test_bundled_model_changes_as_many_choices_as_its_precision_costs(void **state)
{
	struct quality q[ARRAY_LEN(formats)];
	uint32_t n, *ids = mini_prompt(4500, &n);

	assert_true(n > 3000);
	measure("heddle-mini", NULL, ids, n, n - 256, q);
	free(ids);
	assert_in_range((uint64_t)(q[0].changed * 1000), 1, 1000);
	assert_in_range((uint64_t)(q[1].changed * 1000), 1000, 8000);
	assert_in_range((uint64_t)(q[2].changed * 1000), 6000, 30000);
	assert_true(q[0].lost < q[1].lost && q[1].lost < q[2].lost);
	assert_true(q[2].lost < 0.05);
}

static void test_random_checkpoint_changes_as_many_choices_as_its_precision_costs(void **state)
{
	const char *name = *state;
	struct fixture *f = fixture_open(name);
	struct quality q[ARRAY_LEN(formats)];
	const struct fixture_prompt *p = &f->prompts[f->prompt_n - 1];
	uint32_t n = MIN(p->length, getenv("HEDDLE_TEST_SUBSET") ? 700u : 1500u);

	measure(name, f->dir, p->ids, n, n - 256, q);
	assert_true(q[0].changed > 0 && q[0].changed < q[1].changed);
	assert_true(q[1].changed < q[2].changed && q[2].changed < 0.5 * q[2].topk);
	/* bf16 has 8 bits of mantissa, e4m3 4, e2m1 2; sums over 128 dims average them out */
	assert_true(q[0].error > 1e-4 && q[0].error < 1e-2);
	assert_true(q[1].error > 1e-3 && q[1].error < 1e-1);
	assert_true(q[2].error > 1e-2 && q[2].error < 5e-1);
	fixture_close(f);
}

int main(void)
{
	struct CMUnitTest tests[] = {
		{"mixed", test_random_checkpoint_changes_as_many_choices_as_its_precision_costs,
			NULL, NULL, "mixed"},
		{"pro", test_random_checkpoint_changes_as_many_choices_as_its_precision_costs, NULL,
			NULL, "pro"},
		{"heddle-mini", test_bundled_model_changes_as_many_choices_as_its_precision_costs,
			NULL, NULL, NULL},
	};
	size_t n = ARRAY_LEN(tests);

	if (getenv("HEDDLE_TEST_SUBSET"))
		n = 1;
	return _cmocka_run_group_tests("index", tests, n, NULL, NULL);
}
