#include "tests/model/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/model/gen.h"

static void data_path(char *out, size_t cap, const char *name, const char *ext)
{
	const char *src = getenv("HEDDLE_SRCDIR");

	snprintf(out, cap, "%s/tests/data/model/%s.%s", src ? src : ".", name, ext);
}

static void *read_all(const char *path, size_t *ret_len)
{
	struct stat st;
	FILE *f = fopen(path, "re");
	void *p;

	if (!f || fstat(fileno(f), &st) < 0)
		fail_msg("%s: %s (HEDDLE_SRCDIR must name the source tree)", path, strerror(errno));
	p = malloc((size_t)st.st_size + 1);
	assert_non_null(p);
	assert_int_equal(fread(p, 1, (size_t)st.st_size, f), st.st_size);
	(void)fclose(f);
	*ret_len = (size_t)st.st_size;
	return p;
}

/* Takes `bytes` off the binary part; every array starts on 2 bytes, so floats are copied out. */
static const void *take(const uint8_t **at, const uint8_t *end, size_t bytes)
{
	void *copy = malloc(bytes ? bytes : 1);

	assert_non_null(copy);
	assert_true((size_t)(end - *at) >= bytes);
	memcpy(copy, *at, bytes);
	*at += bytes;
	return copy;
}

static uint32_t number(const json_t *o, const char *key)
{
	return (uint32_t)json_integer_value(json_object_get(o, key));
}

static int by_network_order(const void *a, const void *b)
{
	const struct fixture_site *x = a, *y = b;

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	return (int)x->kind - (int)y->kind;
}

static void read_sites(struct fixture_prompt *p, const json_t *layers, enum fixture_site_kind kind,
	const uint8_t **at, const uint8_t *end)
{
	struct fixture_site *s;
	size_t i;

	for (i = 0; i < json_array_size(layers); i++) {
		s = &p->sites[p->site_n++];
		s->kind = kind;
		s->layer = (uint32_t)json_integer_value(json_array_get(layers, i));
		s->set = take(at, end, p->length * sizeof(*s->set));
		s->gap = take(at, end, p->length * sizeof(*s->gap));
	}
}

static void read_prompt(struct fixture *f, struct fixture_prompt *p, const json_t *row,
	const uint8_t **at, const uint8_t *end)
{
	const json_t *index = json_object_get(f->doc, "index_layers");
	const json_t *route = json_object_get(f->doc, "route_layers");
	const json_t *greedy = json_object_get(row, "greedy"), *step;
	uint32_t i;

	p->length = number(row, "length");
	p->ids = calloc(p->length, sizeof(*p->ids));
	assert_non_null(p->ids);
	gen_prompt(number(row, "seed"), p->length, f->vocab, p->ids);
	p->next = take(at, end, (p->length - 1) * sizeof(*p->next));
	p->best = take(at, end, p->length * sizeof(*p->best));
	p->margin = take(at, end, p->length * sizeof(*p->margin));
	p->sites = calloc(json_array_size(index) + json_array_size(route) + 1, sizeof(*p->sites));
	assert_non_null(p->sites);
	read_sites(p, index, FIXTURE_INDEX, at, end);
	read_sites(p, route, FIXTURE_ROUTE, at, end);
	qsort(p->sites, p->site_n, sizeof(*p->sites), by_network_order);
	p->greedy_n = (uint32_t)json_array_size(greedy);
	p->greedy = calloc(p->greedy_n + 1, sizeof(*p->greedy));
	assert_non_null(p->greedy);
	for (i = 0; i < p->greedy_n; i++) {
		step = json_array_get(greedy, i);
		p->greedy[i].token = (uint32_t)json_integer_value(json_array_get(step, 0));
		p->greedy[i].margin = (float)json_number_value(json_array_get(step, 1));
	}
}

static void make_checkpoint(struct fixture *f)
{
	const char *want = json_string_value(json_object_get(f->doc, "checksum"));
	const char *tmp = getenv("TMPDIR");
	enum gen_base base;
	uint64_t sum;
	char got[17];

	snprintf(f->dir, sizeof(f->dir), "%s/heddle-model.XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(f->dir));
	assert_int_equal(
		gen_base_parse(json_string_value(json_object_get(f->doc, "base")), &base), 0);
	assert_int_equal(
		gen_checkpoint(f->dir, json_object_get(f->doc, "config"),
			(uint64_t)json_integer_value(json_object_get(f->doc, "seed")), base, &sum),
		0);
	/* C and Python must have drawn the same bytes, or nothing below means anything */
	snprintf(got, sizeof(got), "%016llx", (unsigned long long)sum);
	assert_string_equal(got, want);
}

struct fixture *fixture_open(const char *name)
{
	struct fixture *f = calloc(1, sizeof(*f));
	const json_t *config, *rows;
	const uint8_t *at, *end;
	json_error_t why;
	char path[1200];
	size_t len;
	uint32_t i;

	assert_non_null(f);
	f->name = name;
	data_path(path, sizeof(path), name, "json");
	f->doc = json_load_file(path, 0, &why);
	if (!f->doc)
		fail_msg("%s: %s", path, why.text);
	data_path(path, sizeof(path), name, "bin");
	f->data = read_all(path, &len);
	at = f->data;
	end = at + len;
	config = json_object_get(f->doc, "config");
	f->qat = strcmp(json_string_value(json_object_get(f->doc, "numerics")), "qat") == 0;
	f->vocab = number(config, "vocab_size");
	f->layers = number(config, "num_hidden_layers");
	f->topk = number(config, "index_topk");
	rows = json_object_get(f->doc, "worlds");
	for (i = 0; i < json_array_size(rows) && i < ARRAY_LEN(f->worlds); i++)
		f->worlds[f->world_n++] = (uint32_t)json_integer_value(json_array_get(rows, i));
	rows = json_object_get(f->doc, "prompts");
	f->prompt_n = (uint32_t)json_array_size(rows);
	f->prompts = calloc(f->prompt_n, sizeof(*f->prompts));
	assert_non_null(f->prompts);
	for (i = 0; i < f->prompt_n; i++)
		read_prompt(f, &f->prompts[i], json_array_get(rows, i), &at, end);
	assert_ptr_equal(at, end);
	make_checkpoint(f);
	return f;
}

static void free_prompt(struct fixture_prompt *p)
{
	uint32_t i;

	for (i = 0; i < p->site_n; i++) {
		free((void *)(uintptr_t)p->sites[i].set);
		free((void *)(uintptr_t)p->sites[i].gap);
	}
	free(p->sites);
	free(p->ids);
	free((void *)(uintptr_t)p->next);
	free((void *)(uintptr_t)p->best);
	free((void *)(uintptr_t)p->margin);
	free(p->greedy);
}

void fixture_close(struct fixture *f)
{
	static const char *const files[] = {"config.json", "model.safetensors"};
	char path[128];
	uint32_t i;

	for (i = 0; i < f->prompt_n; i++)
		free_prompt(&f->prompts[i]);
	free(f->prompts);
	free(f->data);
	for (i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", f->dir, files[i]);
		(void)unlink(path);
	}
	(void)rmdir(f->dir);
	json_decref(f->doc);
	free(f);
}

float fixture_gap(const struct fixture_site *site, uint32_t pos)
{
	uint16_t h = site->gap[pos];
	int e = (h >> 10) & 31, m = h & 1023;

	if (e == 31)
		return INFINITY;
	return ldexpf((float)(e ? m + 1024 : m), (e ? e : 1) - 25);
}

uint16_t fixture_fold(const uint32_t *chosen, uint32_t n)
{
	uint64_t fold = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		fold ^= gen_mix((uint64_t)chosen[i] + 1);
	return (uint16_t)fold;
}
