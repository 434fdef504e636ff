#include "kernels/cpu/act.h"
#include "kernels/cpu/run.h"

int KERN_FN(act_amax)(const struct kern_act_amax_args *a, void *stream)
{
	uint32_t ng = kern_act_groups(a->k, a->col0);

	for (uint32_t t = 0; t < a->rows; t++)
		for (uint32_t g = 0, at = 0; g < ng; g++) {
			uint32_t end = MIN(a->k, at + 128 - (a->col0 + at) % 128);

			a->amax[(size_t)t * ng + g] = kern_amax(a->x + t * a->ldx + at, end - at);
			at = end;
		}
	return 0;
}
