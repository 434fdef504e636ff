#include "tests/model/harness_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct harness_out *harness_out_new(const struct harness *h, unsigned want)
{
	struct harness_out *out = calloc(1, sizeof(*out));

	assert_non_null(out);
	out->want = want;
	out->vocab = h->capacity.vocab;
	out->layers = h->layers;
	out->last_logits = calloc(out->vocab, sizeof(float));
	assert_non_null(out->last_logits);
	return out;
}

static void free_choices(struct harness_choice *c, uint64_t n)
{
	for (uint64_t i = 0; c && i < n; i++) {
		free(c[i].entries);
		free(c[i].scores);
		free(c[i].mass);
	}
	free(c);
}

void harness_out_free(struct harness_out *out)
{
	if (!out)
		return;
	free_choices(out->choices, out->n * out->layers);
	free_choices(out->routes, out->n * out->layers);
	free(out->tokens);
	free(out->logits);
	free(out->next_logprob);
	free(out->last_logits);
	free(out);
}

static void *grow(void *p, uint64_t from, uint64_t to, size_t each)
{
	unsigned char *bytes = realloc(p, to * each);

	assert_non_null(bytes);
	memset(bytes + from * each, 0, (to - from) * each);
	return bytes;
}

static bool wants_logits(const struct harness_out *out)
{
	return out->want & (HARNESS_LOGITS | HARNESS_NEXT);
}

static void reserve(struct harness_out *out, uint64_t need)
{
	uint64_t cap = out->cap;

	if (need > cap) {
		out->cap = MAX(need, 2 * cap);
		out->tokens = grow(out->tokens, cap, out->cap, sizeof(*out->tokens));
		out->next_logprob =
			grow(out->next_logprob, cap, out->cap, sizeof(*out->next_logprob));
		if (out->want & HARNESS_LOGITS)
			out->logits =
				grow(out->logits, cap, out->cap, out->vocab * sizeof(*out->logits));
		if (out->want & HARNESS_INDEX)
			out->choices = grow(
				out->choices, cap, out->cap, out->layers * sizeof(*out->choices));
		if (out->want & HARNESS_ROUTES)
			out->routes = grow(
				out->routes, cap, out->cap, out->layers * sizeof(*out->routes));
	}
}

void harness_out_begin(struct harness_out *out, uint64_t pos, const uint32_t *tokens, uint32_t n)
{
	uint64_t need = pos + n;

	if (out->n == 0)
		out->n = out->skipped = pos;
	assert_int_equal(out->n, pos);
	reserve(out, need);
	memcpy(out->tokens + out->n, tokens, n * sizeof(*tokens));
	if (out->n > out->skipped && wants_logits(out))
		out->next_logprob[out->n - 1] =
			(float)harness_logprob(out->last_logits, out->vocab, tokens[0]);
	out->n = need;
}

double harness_logprob(const float *logits, uint32_t vocab, uint32_t token)
{
	double most = -INFINITY, sum = 0;

	for (uint32_t v = 0; v < vocab; v++)
		most = fmax(most, (double)logits[v]);
	for (uint32_t v = 0; v < vocab; v++)
		sum += exp((double)logits[v] - most);
	return (double)logits[token] - most - log(sum);
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void on_logits(void *user, uint32_t seq, uint64_t pos, const float *logits)
{
	struct harness *h = user;
	struct harness_out *out = h->parts[seq].out;

	if (!out || !wants_logits(out))
		return;
	assert_true(pos < out->n);
	if (out->want & HARNESS_LOGITS)
		memcpy(out->logits + pos * out->vocab, logits, out->vocab * sizeof(*logits));
	if (pos + 1 < out->n)
		out->next_logprob[pos] =
			(float)harness_logprob(logits, out->vocab, out->tokens[pos + 1]);
	else
		memcpy(out->last_logits, logits, out->vocab * sizeof(*logits));
}

static void *copy(const void *from, size_t n, size_t each)
{
	void *to;

	if (!from)
		return NULL;
	to = malloc(MAX(n * each, (size_t)1));
	assert_non_null(to);
	memcpy(to, from, n * each);
	return to;
}

static void on_index(void *user, uint32_t layer, uint32_t seq, uint64_t pos,
	const uint32_t *entries, const float *scores, const float *mass, uint32_t n)
{
	struct harness *h = user;
	struct harness_out *out = h->parts[seq].out;

	if (!out || !(out->want & HARNESS_INDEX))
		return;
	assert_true(pos < out->n);
	out->choices[pos * out->layers + layer] = (struct harness_choice){
		.n = n,
		.entries = copy(entries, n, sizeof(*entries)),
		.scores = copy(scores, n, sizeof(*scores)),
		.mass = copy(mass, n, sizeof(*mass)),
	};
}

static void on_route(
	void *user, uint32_t layer, uint32_t seq, uint64_t pos, const uint32_t *experts, uint32_t k)
{
	struct harness *h = user;
	struct harness_out *out = h->parts[seq].out;

	if (!out || !(out->want & HARNESS_ROUTES))
		return;
	assert_true(pos < out->n);
	out->routes[pos * out->layers + layer] =
		(struct harness_choice){.n = k, .entries = copy(experts, k, sizeof(*experts))};
}

static unsigned all_wants(const struct harness *h)
{
	unsigned want = 0;

	for (uint32_t i = 0; i < h->part_n; i++)
		want |= h->parts[i].out ? h->parts[i].out->want : 0;
	return want;
}

void harness_out_hooks(struct harness *h, struct rank_hooks *ret_hooks)
{
	unsigned want = all_wants(h);

	*ret_hooks = (struct rank_hooks){
		.user = h,
		.on_beat = h->on_beat,
		.on_logits = want & (HARNESS_LOGITS | HARNESS_NEXT) ? on_logits : NULL,
		.on_index = want & HARNESS_INDEX ? on_index : NULL,
		.on_route = want & HARNESS_ROUTES ? on_route : NULL,
	};
}

/* ---- comparisons ---------------------------------------------------------------------------- */

int64_t harness_out_differs(const struct harness_out *a, const struct harness_out *b)
{
	assert_int_equal(a->n, b->n);
	assert_non_null(a->logits);
	assert_non_null(b->logits);
	for (uint64_t i = 0; i < a->n; i++)
		if (memcmp(a->logits + i * a->vocab, b->logits + i * b->vocab,
			    a->vocab * sizeof(float)) != 0)
			return (int64_t)i;
	return -1;
}

int64_t harness_choices_differ(const struct harness_out *a, const struct harness_out *b)
{
	assert_int_equal(a->n, b->n);
	assert_non_null(a->choices);
	assert_non_null(b->choices);
	for (uint64_t i = 0; i < a->n * a->layers; i++)
		if (a->choices[i].n != b->choices[i].n ||
			memcmp(a->choices[i].entries ? a->choices[i].entries : (uint32_t *)"",
				b->choices[i].entries ? b->choices[i].entries : (uint32_t *)"",
				a->choices[i].n * sizeof(uint32_t)) != 0)
			return (int64_t)i;
	return -1;
}
