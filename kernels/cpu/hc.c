/* Hyper-connections: coefficients, the streams joined, the streams updated. */
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/run.h"

/*
 * Coefficients from m = fn x (24 numbers, already scaled by rho). Sums run over ascending indices.
 */
static void coefficients(
	const struct kern_hc_coef_args *a, const float *m, float *pre, float *post, float *comb)
{
	float c[4][4], eps = a->hc_eps;

	for (int i = 0; i < 4; i++) {
		float max = -INFINITY, sum = 0;

		pre[i] = kern_sigmoid(m[i] * a->scale[0] + a->base[i]) + eps;
		post[i] = 2.0f * kern_sigmoid(m[4 + i] * a->scale[1] + a->base[4 + i]);
		for (int j = 0; j < 4; j++) {
			c[i][j] = m[8 + 4 * i + j] * a->scale[2] + a->base[8 + 4 * i + j];
			max = c[i][j] > max ? c[i][j] : max;
		}
		for (int j = 0; j < 4; j++) {
			c[i][j] = kern_expf(c[i][j] - max);
			sum += c[i][j];
		}
		for (int j = 0; j < 4; j++)
			c[i][j] = c[i][j] / sum + eps;
	}
	for (uint32_t it = 0; it < a->iters; it++) {
		if (it)
			for (int i = 0; i < 4; i++) {
				float s = c[i][0] + c[i][1] + c[i][2] + c[i][3] + eps;

				for (int j = 0; j < 4; j++)
					c[i][j] /= s;
			}
		for (int j = 0; j < 4; j++) {
			float s = c[0][j] + c[1][j] + c[2][j] + c[3][j] + eps;

			for (int i = 0; i < 4; i++)
				c[i][j] /= s;
		}
	}
	memcpy(comb, c, sizeof(c));
}

struct coef_job {
	const struct kern_hc_coef_args *a;
	float *m; /* [rows][24] */
};

static void coef_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct coef_job *j = job;
	const struct kern_hc_coef_args *a = j->a;
	struct kern_part p = kern_part(a->rows, 1, i, n);
	size_t width = (size_t)KERN_STREAMS * a->d;

	for (size_t t = p.begin; t < p.end; t++) {
		float rho = kern_rms_scale(a->x + t * width, width, a->rms_eps);
		float *m = j->m + t * KERN_HC_COEF;

		for (int k = 0; k < KERN_HC_COEF; k++)
			m[k] = rho * m[k];
		coefficients(a, m, a->pre + 4 * t, a->post + 4 * t, a->comb + 16 * t);
	}
}

int KERN_FN(hc_coef)(const struct kern_hc_coef_args *a, void *stream)
{
	uint32_t width = KERN_STREAMS * a->d;
	float m[KERN_ROW_BLOCK * KERN_HC_COEF];

	if (a->fn->k != width || a->fn->n != KERN_HC_COEF)
		return -EINVAL;
	for (uint32_t t = 0; t < a->rows; t += KERN_ROW_BLOCK) {
		struct kern_hc_coef_args b = *a;
		struct coef_job j = {&b, m};
		struct kern_linear_args lin = {.n = 1, .ldx = width};
		int rc;

		b.rows = MIN(a->rows - t, (uint32_t)KERN_ROW_BLOCK);
		b.x += (size_t)t * width;
		b.pre += 4 * (size_t)t;
		b.post += 4 * (size_t)t;
		b.comb += 16 * (size_t)t;
		lin.rows = b.rows;
		lin.x = b.x;
		lin.out[0] = (struct kern_linear_out){a->fn, m, KERN_HC_COEF};
		rc = KERN_FN(linear)(&lin, stream);
		if (rc)
			return rc;
		kern_run(stream, (size_t)b.rows * (width + 4096), coef_part, &j);
	}
	return 0;
}

static void join_row(const float *x, const float *pre, uint32_t d, float *y)
{
	for (uint32_t i = 0; i < d; i++) {
		float s = pre[0] * x[i];

		s = kern_fma(pre[1], x[d + i], s);
		s = kern_fma(pre[2], x[2 * d + i], s);
		y[i] = kern_fma(pre[3], x[3 * d + i], s);
	}
}

static void hc_pre_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hc_pre_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		join_row(a->x + t * KERN_STREAMS * a->d, a->pre + 4 * t, a->d, a->y + t * a->d);
}

int KERN_FN(hc_pre)(const struct kern_hc_pre_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->d * KERN_STREAMS, hc_pre_part, a);
	return 0;
}

static void hc_pre_norm_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hc_pre_norm_args *a = job;
	uint32_t d = a->pre.d;
	struct kern_part p = kern_part(a->pre.rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++) {
		float *y = a->pre.y + t * d;

		join_row(a->pre.x + t * KERN_STREAMS * d, a->pre.pre + 4 * t, d, y);
		kern_norm_row(y, a->w, d, a->eps, y);
	}
}

int KERN_FN(hc_pre_norm)(const struct kern_hc_pre_norm_args *a, void *stream)
{
	kern_run(stream, (size_t)a->pre.rows * a->pre.d * KERN_STREAMS, hc_pre_norm_part, a);
	return 0;
}

static void hc_post_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct kern_hc_post_args *a = job;
	uint32_t d = a->d;
	struct kern_part p = kern_part(a->rows, 1, part, n);

	for (size_t t = p.begin; t < p.end; t++) {
		const float *x = a->x + t * KERN_STREAMS * d, *o = a->o + t * d;
		const float *post = a->post + 4 * t, *m = a->comb + 16 * t;
		float *y = a->y + t * KERN_STREAMS * d;

		for (uint32_t i = 0; i < d; i++) {
			float x0 = x[i], x1 = x[d + i], x2 = x[2 * d + i], x3 = x[3 * d + i];
			float oi = o[i];

			for (int k = 0; k < KERN_STREAMS; k++) {
				float s = post[k] * oi;

				s = kern_fma(m[k], x0, s);
				s = kern_fma(m[4 + k], x1, s);
				s = kern_fma(m[8 + k], x2, s);
				y[k * d + i] = kern_fma(m[12 + k], x3, s);
			}
		}
	}
}

int KERN_FN(hc_post)(const struct kern_hc_post_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->d * 20, hc_post_part, a);
	return 0;
}

int KERN_FN(hc_head)(const struct kern_hc_head_args *a, void *stream)
{
	uint32_t width = KERN_STREAMS * a->d;

	if (a->fn->k != width || a->fn->n != KERN_STREAMS)
		return -EINVAL;
	for (uint32_t t = 0; t < a->n; t++) {
		const float *x = a->x + (size_t)(a->rows ? a->rows[t] : t) * width;
		float pre[KERN_STREAMS], rho = kern_rms_scale(x, width, a->rms_eps);
		struct kern_linear_args lin = {.rows = 1, .n = 1, .x = x, .ldx = width};
		int rc;

		lin.out[0] = (struct kern_linear_out){a->fn, pre, KERN_STREAMS};
		rc = KERN_FN(linear)(&lin, stream);
		if (rc)
			return rc;
		for (int i = 0; i < KERN_STREAMS; i++)
			pre[i] = kern_sigmoid(rho * pre[i] * a->scale[0] + a->base[i]) + a->hc_eps;
		join_row(x, pre, a->d, a->y + (size_t)t * a->d);
	}
	return 0;
}
