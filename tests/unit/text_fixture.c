#include "tests/unit/text_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char *what, const char *path)
{
	fprintf(stderr, "%s: %s\n", path, what);
	exit(1);
}

char *fixture_read(const char *path, size_t *ret_len)
{
	const char *top = getenv("HEDDLE_SRCDIR");
	size_t n = strlen(path), cap = 1 << 20, len = 0;
	bool packed = n > 3 && !strcmp(path + n - 3, ".xz");
	char full[4096], command[5000], *data;
	FILE *f;

	snprintf(full, sizeof(full), "%s/%s", top ? top : ".", path);
	snprintf(command, sizeof(command), "xz -dc '%s'", full);
	if (packed && system("xz --version >/dev/null 2>&1") != 0) {
		fprintf(stderr, "skipped: xz is not installed\n");
		exit(77);
	}
	f = packed ? popen(command, "r") : fopen(full, "rb");
	data = malloc(cap);
	if (!f || !data)
		fail("cannot read", full);
	while ((n = fread(data + len, 1, cap - len - 1, f)) > 0) {
		len += n;
		if (cap - len < 2 && !(data = realloc(data, cap *= 2)))
			fail("no memory", full);
	}
	if ((packed ? pclose(f) : fclose(f)) != 0)
		fail("cannot read", full);
	data[len] = 0;
	*ret_len = len;
	return data;
}

static struct tokenizer *load(const char *path, const char *config_path)
{
	struct tokenizer *tok = NULL;
	struct errbuf err = {0};
	size_t len, config_len;
	char *json = fixture_read(path, &len), *config = fixture_read(config_path, &config_len);

	if (tokenizer_parse(json, len, config, config_len, &tok, &err) < 0)
		fail(err.text, path);
	free(json);
	free(config);
	return tok;
}

struct tokenizer *fixture_mini(void)
{
	return load(
		"models/heddle-mini/tokenizer.json", "models/heddle-mini/tokenizer_config.json");
}

struct tokenizer *fixture_deepseek(void)
{
	return load("tests/data/tokenizer/deepseek-v3.json.xz",
		"tests/data/tokenizer/deepseek-v3.config.json");
}

uint32_t fixture_u32(const uint8_t *p, size_t index)
{
	p += index * 4;
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* A column of lengths and what they measure. Returns what follows. */
static const uint8_t *column(const uint8_t *p, uint32_t count, size_t unit,
	const uint8_t **ret_lens, const uint8_t **ret_items)
{
	size_t total = 0;

	for (uint32_t i = 0; i < count; i++)
		total += fixture_u32(p, i);
	*ret_lens = p;
	*ret_items = p + (size_t)count * 4;
	return *ret_items + total * unit;
}

void fixture_cases_open(struct fixture_cases *c)
{
	const char *path = "tests/data/tokenizer/cases.bin.xz";
	const uint8_t *p;
	size_t len;

	c->data = fixture_read(path, &len);
	p = (const uint8_t *)c->data;
	if (len < 8 || memcmp(p, "HDTC", 4) != 0)
		fail("not a file of cases", path);
	c->count = fixture_u32(p, 1);
	p = column(p + 8, c->count, 1, &c->lens, &c->texts);
	for (int t = 0; t < 2; t++)
		p = column(p, c->count, 4, &c->expect[t].lens, &c->expect[t].ids);
	if (p != (const uint8_t *)c->data + len)
		fail("cut short", path);
}

void fixture_cases_close(struct fixture_cases *c)
{
	free(c->data);
}

uint64_t fixture_seed(void)
{
	const char *given = getenv("HEDDLE_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);

	printf("# HEDDLE_SEED=%llu\n", (unsigned long long)seed);
	return seed;
}

/* splitmix64 */
uint64_t fixture_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}
