/* Row ops against loops in double: norms, hyper-connections, routing, log-probabilities. */
#include <math.h>

#include "tests/kern/kt.h"

static const uint32_t ROWS[] = {1, 3, 8, 13, 16, 64, 129, 193};

/* The first configuration gives the base; the others must have its bits. */
#define SAME_OR_FIRST(what, base, got, bytes)                                                      \
	do {                                                                                       \
		if (base)                                                                          \
			kt_same(what, got, base, bytes);                                           \
		else                                                                               \
			base = got;                                                                \
	} while (0)

static double plain_rms(const float *x, uint32_t d, double eps)
{
	double s = 0;

	for (uint32_t i = 0; i < d; i++)
		s += (double)x[i] * x[i];
	return 1 / sqrt(s / d + eps);
}

static void test_rmsnorm_matches_loop_at_odd_sizes(void **state)
{
	static const uint32_t dims[] = {1, 3, 15, 16, 17, 63, 128, 255, 512, 1000};

	for (size_t k = 0; k < ARRAY_LEN(dims); k++) {
		uint32_t d = dims[k], rows = 1 + kt_below(70);
		size_t ld = d + 3;
		float *x = kt_normals(rows * ld, 2), *w = kt_normals(d, 1), *base = NULL;
		double *want = kt_new(sizeof(double) * rows * d);

		for (uint32_t t = 0; t < rows; t++) {
			double s = plain_rms(x + t * ld, d, 1e-6);

			for (uint32_t i = 0; i < d; i++)
				want[t * d + i] = x[t * ld + i] * s * w[i];
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *y = kt_floats(rows * d), *z = kt_floats(rows * ld);
			struct kern_rmsnorm_args a = {rows, d, x, ld, w, 1e-6f, y, d};

			assert_int_equal(c->ops.rmsnorm(&a, &c->ctx), 0);
			if (!base)
				kt_close("rmsnorm", y, want, rows * d, 1e-6, 1e-6);
			SAME_OR_FIRST(c->variant, base, y, rows * d * sizeof(float));
			/* in place, rows keep their gaps */
			memcpy(z, x, rows * ld * sizeof(float));
			a = (struct kern_rmsnorm_args){rows, d, z, ld, w, 1e-6f, z, ld};
			assert_int_equal(c->ops.rmsnorm(&a, &c->ctx), 0);
			for (uint32_t t = 0; t < rows; t++) {
				kt_same("in place", z + t * ld, base + t * d, d * sizeof(float));
				kt_same("gap", z + t * ld + d, x + t * ld + d, 12);
			}
		}
		kt_free_all();
	}
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* The coefficients of one row, in double. */
static void plain_coef(const float *x, const struct kt_weight *fn, const float *base,
	const float *scale, uint32_t d, uint32_t iters, double *pre, double *post, double *comb)
{
	double m[24], rho = plain_rms(x, 4 * d, 1e-6), eps = 1e-6, c[4][4];

	for (int k = 0; k < 24; k++) {
		m[k] = 0;
		for (uint32_t i = 0; i < 4 * d; i++)
			m[k] += x[i] * fn->value[(size_t)k * 4 * d + i];
		m[k] *= rho;
	}
	for (int i = 0; i < 4; i++) {
		double sum = 0;

		pre[i] = sigmoid(m[i] * scale[0] + base[i]) + eps;
		post[i] = 2 * sigmoid(m[4 + i] * scale[1] + base[4 + i]);
		for (int j = 0; j < 4; j++)
			sum += c[i][j] = exp(m[8 + 4 * i + j] * scale[2] + base[8 + 4 * i + j]);
		for (int j = 0; j < 4; j++)
			c[i][j] = c[i][j] / sum + eps;
	}
	for (uint32_t it = 0; it < 2 * iters - 1; it++)
		for (int a = 0; a < 4; a++) {
			double sum = eps;
			bool column = it % 2 == 0;

			for (int b = 0; b < 4; b++)
				sum += column ? c[b][a] : c[a][b];
			for (int b = 0; b < 4; b++)
				*(column ? &c[b][a] : &c[a][b]) /= sum;
		}
	memcpy(comb, c, sizeof(c));
}

static void test_hc_coefficients_match_loop(void **state)
{
	static const uint32_t dims[] = {5, 16, 64};

	for (size_t k = 0; k < ARRAY_LEN(dims); k++)
		for (size_t r = 0; r < ARRAY_LEN(ROWS); r++) {
			uint32_t d = dims[k], rows = ROWS[r], iters = k ? 20 : 1;
			struct kt_weight fn = kt_weight(KERN_F32, 0, 24, 4 * d, 0, 0);
			float *x = kt_normals(rows * 4 * d, 1), *base = kt_normals(24, 1);
			float scale[3] = {0.7f, 1.3f, 2}, *first = NULL;
			double *want = kt_new(sizeof(double) * rows * 24);

			for (uint32_t t = 0; t < rows; t++)
				plain_coef(x + t * 4 * d, &fn, base, scale, d, iters, want + 4 * t,
					want + 4 * (rows + t), want + 8 * rows + 16 * t);
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				float *y = kt_floats(rows * 24);
				struct kern_hc_coef_args a = {rows, d, x, &fn.w, base, scale, 1e-6f,
					1e-6f, iters, y, y + 4 * rows, y + 8 * rows};

				assert_int_equal(c->ops.hc_coef(&a, &c->ctx), 0);
				if (!first)
					kt_close("hc_coef", y, want, rows * 24, 1e-5, 1e-5);
				SAME_OR_FIRST(c->variant, first, y, rows * 96);
				a.d = d + 1;
				assert_int_equal(c->ops.hc_coef(&a, &c->ctx), -EINVAL);
			}
			if (iters == 20) /* nearly doubly stochastic */
				for (uint32_t t = 0; t < rows; t++)
					for (int j = 0; j < 4; j++) {
						const float *m = first + 8 * rows + 16 * t;
						float s = m[j] + m[4 + j] + m[8 + j] + m[12 + j];

						assert_true(fabsf(s - 1) < 1e-4f);
					}
			kt_free_all();
		}
}

static void test_hc_pre_post_match_loops(void **state)
{
	static const uint32_t dims[] = {1, 17, 64, 100};

	for (size_t k = 0; k < ARRAY_LEN(dims); k++) {
		uint32_t d = dims[k], rows = 1 + kt_below(40);
		float *x = kt_normals(rows * 4 * d, 1), *pre = kt_normals(rows * 4, 1);
		float *o = kt_normals(rows * d, 1), *comb = kt_normals(rows * 16, 1);
		float *w = kt_normals(d, 1);
		double *join = kt_new(8 * rows * d), *norm = kt_new(8 * rows * d);
		double *post = kt_new(8 * rows * 4 * d);
		float *b[2] = {0};

		for (uint32_t t = 0; t < rows; t++) {
			double sq = 0;

			for (uint32_t i = 0; i < d; i++) {
				double s = 0;

				for (int j = 0; j < 4; j++)
					s += (double)pre[4 * t + j] * x[(4 * t + j) * d + i];
				join[t * d + i] = s;
				sq += s * s;
				for (int q = 0; q < 4; q++) {
					s = (double)pre[4 * t + q] * o[t * d + i];
					for (int j = 0; j < 4; j++)
						s += (double)comb[16 * t + 4 * j + q] *
						     x[(4 * t + j) * d + i];
					post[(4 * t + q) * d + i] = s;
				}
			}
			for (uint32_t i = 0; i < d; i++)
				norm[t * d + i] = join[t * d + i] / sqrt(sq / d + 1e-6) * w[i];
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *y0 = kt_floats(rows * d), *y1 = kt_floats(rows * d);
			float *y2 = kt_floats(rows * 4 * d);
			struct kern_hc_pre_args ap = {rows, d, x, pre, y0};
			struct kern_hc_pre_norm_args an = {{rows, d, x, pre, y1}, w, 1e-6f};
			struct kern_hc_post_args ao = {rows, d, y2, o, pre, comb, y2};

			memcpy(y2, x, rows * 4 * d * sizeof(float)); /* in place */
			assert_int_equal(c->ops.hc_pre(&ap, &c->ctx), 0);
			assert_int_equal(c->ops.hc_pre_norm(&an, &c->ctx), 0);
			assert_int_equal(c->ops.hc_post(&ao, &c->ctx), 0);
			if (!b[0]) {
				kt_close("hc_pre", y0, join, rows * d, 2e-6, 2e-6);
				kt_close("hc_pre_norm", y1, norm, rows * d, 1e-5, 1e-5);
				kt_close("hc_post", y2, post, rows * 4 * d, 3e-6, 3e-6);
			}
			SAME_OR_FIRST("hc_pre_norm", b[0], y1, rows * d * 4);
			SAME_OR_FIRST("hc_post", b[1], y2, rows * 4 * d * 4);
			/* the fused op equals its chain */
			{
				struct kern_rmsnorm_args n = {rows, d, y0, d, w, 1e-6f, y0, d};

				assert_int_equal(c->ops.rmsnorm(&n, &c->ctx), 0);
				kt_same("hc_pre, rmsnorm", y0, y1, rows * d * 4);
			}
		}
		kt_free_all();
	}
}

/* One row's streams joined by hc_head, in double. */
static void plain_head(const float *x, const struct kt_weight *fn, const float *base, float scale,
	uint32_t d, double *y)
{
	double rho = plain_rms(x, 4 * d, 1e-6);

	memset(y, 0, d * sizeof(*y));
	for (int j = 0; j < 4; j++) {
		double p = 0;

		for (uint32_t i = 0; i < 4 * d; i++)
			p += x[i] * fn->value[(size_t)j * 4 * d + i];
		p = sigmoid(rho * p * scale + base[j]) + 1e-6;
		for (uint32_t i = 0; i < d; i++)
			y[i] += p * x[(size_t)j * d + i];
	}
}

/* Rows in order and not, alone and in runs, and in runs longer than a block of rows. */
static void test_hc_head_takes_any_rows(void **state)
{
	static const uint32_t counts[] = {1, 2, 7, 16, 191, 192, 193, 400};
	enum { D = 17, ROWS_OF_X = 400 };
	struct kt_weight fn = kt_weight(KERN_F32, 0, 4, 4 * D, 0, 0);
	float *x = kt_normals(ROWS_OF_X * 4 * D, 1), base[4] = {0.1f, -1, 0, 2}, scale = 0.9f;
	double *want = kt_new(sizeof(double) * ROWS_OF_X * D);

	for (size_t k = 0; k < ARRAY_LEN(counts); k++)
		for (int kind = 0; kind < 3; kind++) {
			uint32_t n = counts[k], rows[ROWS_OF_X];
			float *first = NULL;

			for (uint32_t t = 0; t < n; t++)
				rows[t] = kind == 0 ? t
					  : kind == 1 || kt_below(4) == 0 || !t
						  ? kt_below(ROWS_OF_X)
					  : rows[t - 1] + 1 < ROWS_OF_X ? rows[t - 1] + 1
									: 0;
			for (uint32_t t = 0; t < n; t++)
				plain_head(x + (size_t)rows[t] * 4 * D, &fn, base, scale, D,
					want + (size_t)t * D);
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				float *y = kt_floats(n * D);
				struct kern_hc_head_args a = {n, D, kind ? rows : NULL, x, &fn.w,
					base, &scale, 1e-6f, 1e-6f, y};

				assert_int_equal(c->ops.hc_head(&a, &c->ctx), 0);
				if (!first)
					kt_close("hc_head", y, want, n * D, 1e-5, 1e-5);
				SAME_OR_FIRST(c->variant, first, y, n * D * 4);
			}
		}
	kt_free_all();
}

static double plain_score(double x)
{
	return sqrt(x > 30 ? x : log1p(exp(x)));
}

static void test_router_by_score_picks_best_and_normalises(void **state)
{
	static const uint32_t shape[][3] = {{1, 8, 2}, {33, 64, 6}, {5, 3, 3}, {64, 7, 1}};

	for (size_t k = 0; k < ARRAY_LEN(shape); k++) {
		uint32_t rows = shape[k][0], e = shape[k][1], topk = shape[k][2];
		float *logits = kt_normals(rows * e, 4), *bias = kt_normals(e, 0.5f), *b1 = NULL;
		double *want = kt_new(8 * rows * topk);
		uint32_t *ids = kt_new(4 * rows * topk);

		if (k == 1) /* rows of ties: the lowest ids win */
			for (uint32_t i = 0; i < e; i++) {
				logits[i] = 1;
				bias[i] = 0;
			}
		for (uint32_t t = 0; t < rows; t++) {
			bool taken[64] = {0};
			uint32_t n = 0;
			double sum = 0;

			for (uint32_t j = 0; j < topk; j++) {
				int best = -1;
				float bv = 0;

				for (uint32_t i = 0; i < e; i++) {
					float v = (float)plain_score(logits[t * e + i]) + bias[i];

					if (!taken[i] && (best < 0 || v > bv)) {
						best = (int)i;
						bv = v;
					}
				}
				taken[best] = true;
			}
			for (uint32_t i = 0; i < e; i++)
				if (taken[i]) {
					ids[t * topk + n] = i;
					want[t * topk + n++] = plain_score(logits[t * e + i]);
				}
			for (uint32_t j = 0; j < topk; j++)
				sum += want[t * topk + j];
			for (uint32_t j = 0; j < topk; j++)
				want[t * topk + j] *= 2.5 / sum;
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			uint32_t *gi = kt_new(4 * rows * topk);
			float *gw = kt_floats(rows * topk);
			struct kern_router_args a = {
				rows, e, topk, logits, bias, NULL, NULL, 2.5f, gi, gw};

			assert_int_equal(c->ops.router(&a, &c->ctx), 0);
			kt_same("ids", gi, ids, 4 * rows * topk);
			if (!b1)
				kt_close("weights", gw, want, rows * topk, 1e-6, 1e-6);
			SAME_OR_FIRST(c->variant, b1, gw, 4 * rows * topk);
			a.topk = e + 1;
			assert_int_equal(c->ops.router(&a, &c->ctx), -EINVAL);
		}
		kt_free_all();
	}
}

/* failures 48: the table gives the experts, the gate their weights */
static void test_router_by_table_weighs_by_gate(void **state)
{
	enum { T = 5, E = 8, K = 3, V = 4 };
	static const int32_t table[V * K] = {7, 0, 3, 1, 2, 3, 6, 5, 4, 0, 7, 1};
	static const uint32_t tokens[T] = {0, 3, 2, 0, 1};
	float *logits = kt_normals(T * E, 3);

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		uint32_t ids[T * K];
		float w[T * K];
		struct kern_router_args a = {T, E, K, logits, NULL, table, tokens, 1.5f, ids, w};

		assert_int_equal(c->ops.router(&a, &c->ctx), 0);
		for (int t = 0; t < T; t++) {
			double sum = 0, want[K];

			for (int j = 0; j < K; j++) {
				bool found = false;

				for (int i = 0; i < K; i++)
					found |= table[tokens[t] * K + i] == (int)ids[t * K + j];
				assert_true(found && (!j || ids[t * K + j] > ids[t * K + j - 1]));
				want[j] = plain_score(logits[t * E + ids[t * K + j]]);
				sum += want[j];
			}
			for (int j = 0; j < K; j++)
				want[j] *= 1.5 / sum;
			kt_close("weights", w + t * K, want, K, 1e-6, 1e-6);
		}
	}
	kt_free_all();
}

static void test_router_survives_nan_rows(void **state)
{
	float logits[3 * 4] = {NAN, NAN, NAN, NAN, 1, NAN, 0, 2, 1, 2, 3, 4};
	uint32_t ids[6];
	float w[6];
	struct kern_router_args a = {3, 4, 2, logits, NULL, NULL, NULL, 1, ids, w};

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		assert_int_equal(c->ops.router(&a, &c->ctx), 0);
		for (int i = 0; i < 6; i++)
			assert_true(ids[i] < 4);
		assert_true(ids[2] == 0 && ids[3] == 3 && ids[4] == 2 && ids[5] == 3);
		assert_true(isnan(w[0]) && !isnan(w[2]) && !isnan(w[4]));
	}
}

static void test_logprob_matches_loop_with_rank_and_alternatives(void **state)
{
	static const uint32_t vocabs[] = {1, 5, 16, 100, 1000, 4097};

	for (size_t k = 0; k < ARRAY_LEN(vocabs); k++) {
		uint32_t v = vocabs[k], rows = 1 + kt_below(9), most = 20;
		size_t ld = v + 2;
		float *x = kt_normals(rows * ld, 3);
		uint32_t *tokens = kt_new(4 * rows), *top = kt_new(4 * rows);

		for (uint32_t t = 0; t < rows; t++) {
			tokens[t] = kt_below(v);
			top[t] = kt_below(most + 1);
			for (uint32_t i = 0; i < v; i++) /* many ties */
				x[t * ld + i] = roundf(x[t * ld + i] * 4) / 4;
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			struct kern_logprob *out = kt_new(sizeof(*out) * rows);
			uint32_t *at = kt_new(4 * rows * most);
			float *al = kt_floats(rows * most);
			struct kern_logprob_args a = {
				rows, v, x, ld, tokens, top, most, out, at, al};

			assert_int_equal(c->ops.logprob(&a, &c->ctx), 0);
			for (uint32_t t = 0; t < rows; t++) {
				const float *r = x + t * ld;
				double sum = 0, max = -1e9, want;
				uint32_t rank = 1;

				for (uint32_t i = 0; i < v; i++)
					max = fmax(max, r[i]);
				for (uint32_t i = 0; i < v; i++) {
					sum += exp(r[i] - max);
					rank += r[i] > r[tokens[t]] ||
						(r[i] == r[tokens[t]] && i < tokens[t]);
				}
				want = r[tokens[t]] - max - log(sum);
				kt_close("logprob", &out[t].logprob, &want, 1, 2e-6, 1e-6);
				assert_int_equal(out[t].rank, rank);
				assert_int_equal(out[t].nan, 0);
				assert_int_equal(out[t].alts, MIN(top[t], v));
				for (uint32_t i = 0; i < out[t].alts; i++) {
					uint32_t id = at[t * most + i], before = 0;

					want = r[id] - max - log(sum);
					kt_close("alt", al + t * most + i, &want, 1, 2e-6, 1e-6);
					for (uint32_t j = 0; j < v; j++)
						before += r[j] > r[id] || (r[j] == r[id] && j < id);
					assert_int_equal(before, i);
				}
			}
		}
		kt_free_all();
	}
}

static void test_logprob_reports_nan(void **state)
{
	float x[2 * 6] = {1, 2, NAN, 4, 0, 1, 1, 2, 3, 4, 0, 1}, al[4];
	uint32_t tokens[2] = {1, 3}, top[2] = {2, 2}, at[4];
	struct kern_logprob out[2];
	struct kern_logprob_args a = {2, 6, x, 6, tokens, top, 2, out, at, al};

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		assert_int_equal(c->ops.logprob(&a, &c->ctx), 0);
		assert_true(out[0].nan == 1 && isnan(out[0].logprob) && at[0] == 3 && at[1] == 1);
		assert_true(out[1].nan == 0 && !isnan(out[1].logprob) && out[1].rank == 1);
		tokens[0] = 6;
		assert_int_equal(c->ops.logprob(&a, &c->ctx), -EINVAL);
		tokens[0] = 1;
	}
}

static void test_rows_of_zero_and_nan_stay_apart(void **state)
{
	enum { T = 9, D = 64 };

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		float *x = kt_normals(T * D, 1), *y = kt_floats(T * D);
		struct kern_rmsnorm_args a = {T, D, x, D, NULL, 1e-6f, y, D};

		memset(x + D, 0, D * 4);
		x[4 * D + 3] = NAN;
		x[5 * D] = INFINITY;
		assert_int_equal(c->ops.rmsnorm(&a, &c->ctx), 0);
		for (int i = 0; i < D; i++) {
			assert_true(y[D + i] == 0);
			assert_true(isnan(y[4 * D + i]));
			assert_true(!isnan(y[3 * D + i]) && !isnan(y[6 * D + i]));
		}
		assert_true(isnan(y[5 * D]) && y[5 * D + 1] == 0);
		a.rows = 0;
		assert_int_equal(c->ops.rmsnorm(&a, &c->ctx), 0);
	}
	kt_free_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rmsnorm_matches_loop_at_odd_sizes),
		cmocka_unit_test(test_hc_coefficients_match_loop),
		cmocka_unit_test(test_hc_pre_post_match_loops),
		cmocka_unit_test(test_hc_head_takes_any_rows),
		cmocka_unit_test(test_router_by_score_picks_best_and_normalises),
		cmocka_unit_test(test_router_by_table_weighs_by_gate),
		cmocka_unit_test(test_router_survives_nan_rows),
		cmocka_unit_test(test_logprob_matches_loop_with_rank_and_alternatives),
		cmocka_unit_test(test_logprob_reports_nan),
		cmocka_unit_test(test_rows_of_zero_and_nan_stay_apart),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
