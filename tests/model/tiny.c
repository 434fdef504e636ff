#include "tests/model/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

void tiny_make(struct tiny *t, bool quantised, bool experts_by_id)
{
	/* Sizes that divide by 4 but are no powers of two, and slices that end inside scale blocks.
	 */
	const struct fix_opts opts = {
		.quantised = quantised,
		.hidden = 96,
		.heads = 4,
		.groups = 4,
		.o_lora = 24,
		.experts = 8,
		.inter = experts_by_id ? 96 : 128,
		.vocab = 388,
	};
	json_t *config = fix_config(&opts);
	char path[300];

	snprintf(t->dir, sizeof(t->dir), "%s/heddle-tiny-XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(t->dir));
	t->vocab = opts.vocab;
	snprintf(path, sizeof(path), "%s/config.json", t->dir);
	assert_int_equal(json_dump_file(config, path, 0), 0);
	json_decref(config);
}

void tiny_remove(struct tiny *t)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/config.json", t->dir);
	unlink(path);
	rmdir(t->dir);
}

struct conf tiny_conf(void)
{
	struct conf conf = harness_conf();

	conf.model_load = CONF_LOAD_DUMMY;
	conf.schedule_max_context = 2048;
	conf.schedule_step_tokens = 700;
	return conf;
}

void tiny_prompt(const struct tiny *t, uint64_t *seed, uint32_t *ids, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ids[i] = (uint32_t)(fix_random(seed) % t->vocab);
}
