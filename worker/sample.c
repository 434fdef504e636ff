#include "worker/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int sampler_open(uint32_t vocab, struct sampler *ret_sampler)
{
	struct sampler s = {.vocab = vocab};

	s.logits = malloc(sizeof(*s.logits) * vocab);
	s.heap = malloc(sizeof(*s.heap) * vocab);
	s.count = calloc(vocab, sizeof(*s.count));
	s.fresh = calloc(vocab, sizeof(*s.fresh));
	if (!s.logits || !s.heap || !s.count || !s.fresh) {
		sampler_close(&s);
		return -ENOMEM;
	}
	*ret_sampler = s;
	return 0;
}

void sampler_close(struct sampler *s)
{
	free(s->logits);
	free(s->heap);
	free(s->count);
	free(s->fresh);
	*s = (struct sampler){0};
}

int sample_check(const struct msg_sample *s, struct errbuf *err)
{
	const struct {
		const char *name;
		float value, min, max;
	} rows[] = {
		{"temperature", s->temperature, 0, 1e6f},
		{"top_p", s->top_p, 0, 1},
		{"min_p", s->min_p, 0, 1},
		{"frequency_penalty", s->frequency_penalty, -1e6f, 1e6f},
		{"presence_penalty", s->presence_penalty, -1e6f, 1e6f},
		{"repetition_penalty", s->repetition_penalty, 1e-6f, 1e6f},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (!(rows[i].value >= rows[i].min && rows[i].value <= rows[i].max))
			return err_set(err, -EBADMSG, 0, "%s is %g, not within %g..%g",
				rows[i].name, (double)rows[i].value, (double)rows[i].min,
				(double)rows[i].max);
	if (s->logprobs > MSG_LOGPROBS_MAX || s->prompt_logprobs > MSG_LOGPROBS_MAX)
		return err_set(err, -EBADMSG, 0, "%u and %u alternatives asked for, at most %u",
			s->logprobs, s->prompt_logprobs, MSG_LOGPROBS_MAX);
	return 0;
}

/* ---- random numbers ---------------------------------------------------------------------- */

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
	uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
	uint32_t next[4] = {
		(uint32_t)(b >> 32) ^ c[1] ^ k[0],
		(uint32_t)b,
		(uint32_t)(a >> 32) ^ c[3] ^ k[1],
		(uint32_t)a,
	};

	memcpy(c, next, sizeof(next));
}

void sample_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_out[4])
{
	uint32_t c[4], k[2] = {key[0], key[1]};

	memcpy(c, counter, sizeof(c));
	for (int i = 0; i < 10; i++) {
		philox_round(c, k);
		k[0] += 0x9E3779B9u;
		k[1] += 0xBB67AE85u;
	}
	memcpy(ret_out, c, sizeof(c));
}

double sample_random(uint64_t seed, uint32_t choice, uint64_t pos)
{
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	const uint32_t counter[4] = {(uint32_t)pos, (uint32_t)(pos >> 32), choice, 0};
	uint32_t out[4];

	sample_philox(counter, key, out);
	return (double)((((uint64_t)out[0] << 32) | out[1]) >> 11) * 0x1p-53;
}

/* ---- from raw logits to candidates --------------------------------------------------------- */

static void count_history(struct sampler *s, const struct sample_params *p, int step)
{
	for (uint64_t i = 0; i < p->history_n; i++) {
		s->count[p->history[i]] += (uint32_t)step;
		if (i >= p->sample->prompt_len)
			s->fresh[p->history[i]] += (uint32_t)step;
	}
}

static void apply_penalties(struct sampler *s, const struct sample_params *p)
{
	const struct msg_sample *m = p->sample;

	if (m->repetition_penalty == 1.0f && m->frequency_penalty == 0.0f &&
		m->presence_penalty == 0.0f)
		return;
	count_history(s, p, 1);
	for (uint32_t v = 0; v < s->vocab; v++) {
		if (s->count[v])
			s->logits[v] = s->logits[v] > 0.0f ? s->logits[v] / m->repetition_penalty
							   : s->logits[v] * m->repetition_penalty;
		if (s->fresh[v])
			s->logits[v] -=
				m->presence_penalty + m->frequency_penalty * (float)s->fresh[v];
	}
	count_history(s, p, -1);
}

/* Fills s->logits; what may not be chosen becomes -inf. */
static void prepare(struct sampler *s, const float *logits, const struct sample_params *p)
{
	memcpy(s->logits, logits, sizeof(*logits) * s->vocab);
	for (uint32_t i = 0; i < p->sample->bias_n; i++)
		s->logits[p->bias[i].token] += p->bias[i].bias;
	apply_penalties(s, p);
	for (uint32_t i = 0; i < p->sample->banned_n; i++)
		s->logits[p->banned[i]] = -INFINITY;
	for (uint32_t v = 0; v < s->vocab; v++)
		s->logits[v] = s->logits[v] < INFINITY ? s->logits[v] : -INFINITY;
}

/* The first of the greatest of x[n], which holds no NaN: lanes apart, so that compilers vectorise.
 */
static uint32_t argmax(const float *x, uint32_t n)
{
	enum { LANES = 16 };
	float lane[LANES], max;
	uint32_t i = 0;

	for (uint32_t l = 0; l < LANES; l++)
		lane[l] = -INFINITY;
	for (; i + LANES <= n; i += LANES)
		for (uint32_t l = 0; l < LANES; l++)
			lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
	max = lane[0];
	for (uint32_t l = 1; l < LANES; l++)
		max = lane[l] > max ? lane[l] : max;
	for (; i < n; i++)
		max = x[i] > max ? x[i] : max;
	for (i = 0; x[i] != max; i++)
		;
	return i;
}

/* ---- candidates by rank: a heap with the best on top ---------------------------------------- */

static bool better(const float *x, uint32_t a, uint32_t b)
{
	return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void sift_down(const float *x, uint32_t *heap, uint32_t n, uint32_t i)
{
	uint32_t moved = heap[i];

	for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
		if (child + 1 < n && better(x, heap[child + 1], heap[child]))
			child++;
		if (better(x, moved, heap[child]))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = moved;
}

static uint32_t heap_pop(const float *x, uint32_t *heap, uint32_t *n)
{
	uint32_t top = heap[0];

	heap[0] = heap[--*n];
	if (*n)
		sift_down(x, heap, *n, 0);
	return top;
}

/*
 * Weight of candidate v in the softmax at this temperature, relative to the best one. In double,
 * so that sums over a large vocabulary keep their small terms.
 */
static double weight(const float *x, uint32_t v, float best, float temperature)
{
	return exp(((double)x[v] - (double)best) / (double)temperature);
}

/*
 * Moves the candidates that survive top_k and top_p, best first, to the end of s->heap and returns
 * how many; n candidates form a heap at its start. top_p keeps the shortest run of the best whose
 * probability (among those that top_k left) reaches it.
 */
static uint32_t truncate(
	struct sampler *s, uint32_t n, const struct msg_sample *m, float best, uint32_t **ret_kept)
{
	uint32_t limit = m->top_k && m->top_k < n ? m->top_k : n;
	uint32_t kept = 0, *end = s->heap + n;
	double total = 0, mass = 0;

	/* The heap shrinks by one for each popped, so the freed place at its end takes it. */
	if (limit == n)
		for (uint32_t i = 0; i < n; i++)
			total += weight(s->logits, s->heap[i], best, m->temperature);
	else
		total = -1;
	for (uint32_t left = n; kept < limit;) {
		uint32_t v = heap_pop(s->logits, s->heap, &left);

		end[-1 - (int64_t)kept++] = v;
		mass += weight(s->logits, v, best, m->temperature);
		if (total >= 0 && mass >= (double)m->top_p * total)
			break;
	}
	if (total < 0 && m->top_p < 1.0f) {
		double goal = (double)m->top_p * mass;
		uint32_t i = 0;

		for (mass = 0; i < kept && mass < goal; i++)
			mass += weight(s->logits, end[-1 - (int64_t)i], best, m->temperature);
		kept = MAX(i, 1u);
	}
	*ret_kept = end - kept;
	return kept;
}

static uint32_t draw(const struct sampler *s, const uint32_t *ids, uint32_t n,
	const struct sample_params *p, float best)
{
	const struct msg_sample *m = p->sample;
	double total = 0, goal;

	for (uint32_t i = 0; i < n; i++)
		total += weight(s->logits, ids[i], best, m->temperature);
	goal = total * sample_random(m->seed, m->choice, p->history_n);
	for (uint32_t i = 0; i + 1 < n; i++) {
		goal -= weight(s->logits, ids[i], best, m->temperature);
		if (goal < 0)
			return ids[i];
	}
	return ids[n - 1];
}

uint32_t sample_token(struct sampler *s, const float *logits, const struct sample_params *p)
{
	const struct msg_sample *m = p->sample;
	uint32_t first, n = 0, *ids = s->heap;
	float best, floor_logit;

	prepare(s, logits, p);
	first = argmax(s->logits, s->vocab);
	best = s->logits[first];
	if (best == -INFINITY) {
		/* Nothing is left: the lowest id that was not banned. */
		memset(s->heap, 0, sizeof(*s->heap) * s->vocab);
		for (uint32_t i = 0; i < m->banned_n; i++)
			s->heap[p->banned[i]] = 1;
		for (uint32_t v = 0; v < s->vocab; v++)
			if (!s->heap[v])
				return v;
		return 0;
	}
	if (m->temperature == 0.0f)
		return first;

	/* p >= min_p * p_best, as logits; min_p = 0 keeps all that is possible at all. */
	floor_logit = m->min_p > 0.0f ? best + m->temperature * logf(m->min_p) : -INFINITY;
	for (uint32_t v = 0; v < s->vocab; v++)
		if (s->logits[v] > -INFINITY && s->logits[v] >= floor_logit)
			s->heap[n++] = v;
	if ((m->top_k && m->top_k < n) || m->top_p < 1.0f) {
		for (uint32_t i = n / 2; i-- > 0;)
			sift_down(s->logits, s->heap, n, i);
		n = truncate(s, n, m, best, &ids);
	}
	return draw(s, ids, n, p, best);
}
