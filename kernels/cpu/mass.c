/*
 * How much attention each chosen entry got: the probabilities that attention computes and does not
 * keep, for diagnosis. Two passes over the keys, so that nothing has to be held of a row but its
 * running maximum and sum.
 */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/run.h"

struct mass_job {
	const struct kern_attention_mass_args *a;
	float *keys; /* [threads][KERN_KEY_TILE][512] */
};

/* Scaled products of one head with a tile of keys. */
static void score_tile(const struct kern_attention_args *a, const float *q,
	const uint8_t *const *at, uint32_t n, float *keys, float *p)
{
	for (uint32_t j = 0; j < n; j++) {
		kern_kv_decode(a->format, at[j], keys + (size_t)j * KERN_HEAD);
		p[j] = kern_dot16(q, keys + (size_t)j * KERN_HEAD, KERN_HEAD) * a->scale;
	}
}

/* Adds one head's probabilities to mass[k]; skips the window's keys and slots without an entry. */
static void add_head(
	const struct kern_attention_args *a, uint32_t row, uint32_t h, float *keys, float *mass)
{
	const float *q = a->q + ((size_t)row * a->heads + h) * KERN_HEAD;
	const int32_t *selected = a->selected + (size_t)row * a->k;
	uint32_t visible = kern_visible(a->batch->row_pos[row], a->ratio), n, slot = 0;
	struct kern_keys k = kern_keys(a, row);
	uint32_t window = k.end - k.pos;
	const uint8_t *at[KERN_KEY_TILE];
	float p[KERN_KEY_TILE], max = a->sink[h], sum = 1, next;

	while ((n = kern_keys_next(&k, KERN_KEY_TILE, at))) {
		score_tile(a, q, at, n, keys, p);
		for (uint32_t j = 0; j < n; j++) {
			next = p[j] > max ? p[j] : max;
			sum = sum * kern_expf(max - next) + kern_expf(p[j] - next);
			max = next;
		}
	}
	k = kern_keys(a, row);
	while ((n = kern_keys_next(&k, KERN_KEY_TILE, at))) {
		score_tile(a, q, at, n, keys, p);
		for (uint32_t j = 0; j < n; j++) {
			if (window) {
				window--;
				continue;
			}
			while ((uint32_t)selected[slot] >= visible)
				slot++;
			mass[slot++] += kern_expf(p[j] - max) / sum;
		}
	}
}

static void mass_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct mass_job *j = job;
	const struct kern_attention_args *a = j->a->attention;
	struct kern_part p = kern_part(a->batch->ntok, 1, i, n);

	for (size_t row = p.begin; row < p.end; row++) {
		float *mass = j->a->mass + row * a->k;

		memset(mass, 0, a->k * sizeof(*mass));
		for (uint32_t h = 0; h < a->heads; h++)
			add_head(a, (uint32_t)row, h,
				j->keys + (size_t)i * KERN_KEY_TILE * KERN_HEAD, mass);
	}
}

int KERN_FN(attention_mass)(const struct kern_attention_mass_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct mass_job j = {a, NULL};

	j.keys = kern_arena_get(&arena, (size_t)c->n * KERN_KEY_TILE * KERN_HEAD * sizeof(float));
	if (!j.keys || !a->attention->ratio || !a->attention->selected ||
		kern_attention_check(a->attention))
		return -EINVAL;
	kern_run(c, (size_t)a->attention->batch->ntok << 20, mass_part, &j);
	return 0;
}
