#include "worker/rank_impl.h"

#define GROUP 128

int act_amax_whole(struct rank *r, const float *x, uint32_t rows, uint32_t k, uint32_t col0,
	uint32_t all_k, float *amax, const float **ret_amax)
{
	uint32_t mine = DIV_UP(col0 % GROUP + k, GROUP), groups = DIV_UP(all_k, GROUP);
	const struct kern_act_amax_args a = {
		.rows = rows, .k = k, .col0 = col0, .x = x, .ldx = k, .amax = amax};
	float *whole = r->work.amax_whole, *all = r->work.amax_all;
	int ret;

	*ret_amax = NULL;
	/* The same answer on every rank: nobody waits for a peer that does not come. */
	if (r->sh.act != KERN_ACT_FP8 || r->sh.world == 1 || all_k % (GROUP * r->sh.world) == 0)
		return 0;
	ret = k ? rank_run(r, act_amax, &a) : 0;
	if (ret < 0)
		return ret;
	memset(whole, 0, sizeof(*whole) * rows * groups);
	for (uint32_t t = 0; t < rows; t++)
		memcpy(whole + (size_t)t * groups + col0 / GROUP, amax + (size_t)t * mine,
			(k ? mine : 0) * sizeof(*whole));
	ret = comm_all_gather(r->comm, whole, sizeof(*whole) * rows * groups, all);
	if (ret < 0)
		return ret;
	for (uint32_t t = 0; t < rows; t++)
		for (uint32_t g = 0; g < mine && k; g++) {
			float most = 0;

			for (uint32_t w = 0; w < r->sh.world; w++)
				most = MAX(most,
					all[((size_t)w * rows + t) * groups + col0 / GROUP + g]);
			amax[(size_t)t * mine + g] = most;
		}
	*ret_amax = amax;
	return 0;
}
