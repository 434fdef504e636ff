/* Which numbers of workers a model can be split over; the rest of model_config.h. */
#include <string.h>

#include "worker/ckpt/model_config.h"

bool model_experts_by_id(const struct model_config *cfg, uint32_t world)
{
	return cfg->inter % world != 0 || cfg->inter / world % MODEL_FP4_BLOCK != 0;
}

static bool fits(const struct model_config *cfg, uint32_t world)
{
	return cfg->heads % world == 0 && cfg->o_groups % world == 0 && cfg->vocab % world == 0 &&
	       (!model_experts_by_id(cfg, world) || cfg->experts % world == 0);
}

PRINTF_LIKE(4, 5)
static void append(char *out, size_t cap, size_t *at, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(out + *at, cap - *at, fmt, ap);
	va_end(ap);
	if (n > 0)
		*at = MIN(*at + (size_t)n, cap - 1);
}

/* "1, 2 or 4": what would do. 1 always does. */
static void list_worlds(const struct model_config *cfg, char *out, size_t cap)
{
	uint32_t good[MODEL_WORLD_MAX], n = 0;
	size_t at = 0;

	for (uint32_t w = 1; w <= MODEL_WORLD_MAX; w++)
		if (fits(cfg, w))
			good[n++] = w;
	for (uint32_t i = 0; i < n; i++)
		append(out, cap, &at, "%s%u", i == 0 ? "" : i + 1 == n ? " or " : ", ", good[i]);
}

int model_config_check_world(const struct model_config *cfg, uint32_t world, struct errbuf *err)
{
	char bad[320] = "", good[128] = "";
	size_t at = 0;

	if (world >= 1 && world <= MODEL_WORLD_MAX && fits(cfg, world))
		return 0;
	list_worlds(cfg, good, sizeof(good));
	if (world < 1 || world > MODEL_WORLD_MAX)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"%u workers: there can be 1 to %d; this model can be split over %s", world,
			MODEL_WORLD_MAX, good);
	if (cfg->heads % world != 0)
		append(bad, sizeof(bad), &at, ", num_attention_heads %u", cfg->heads);
	if (cfg->o_groups % world != 0)
		append(bad, sizeof(bad), &at, ", o_groups %u", cfg->o_groups);
	if (cfg->vocab % world != 0)
		append(bad, sizeof(bad), &at, ", vocab_size %u", cfg->vocab);
	if (model_experts_by_id(cfg, world) && cfg->experts % world != 0)
		append(bad, sizeof(bad), &at,
			", n_routed_experts %u (moe_intermediate_size %u is no multiple of %u x %d "
			"either)",
			cfg->experts, cfg->inter, world, MODEL_FP4_BLOCK);
	return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
		"this model cannot be split over %u workers, which do not divide %s; %s would do",
		world, bad + 2, good);
}
