#include "coordinator/pages.h"

#include <assert.h>
#include <stdlib.h>

#define PAGES_COUNT_MAX (1u << 28) /* sanity: 2^28 pages of 64 KB would be 16 TB */

static int class_init(struct pages_class *c, const struct page_class_info *info)
{
	uint32_t i;

	c->tokens_per_page = info->tokens_per_page;
	c->count = info->tokens_per_page ? info->count : 0;
	if (c->count == 0)
		return 0;
	c->free = malloc(c->count * sizeof(*c->free));
	c->limbo = malloc(c->count * sizeof(*c->limbo));
	c->refs = calloc(c->count, sizeof(*c->refs));
	if (!c->free || !c->limbo || !c->refs)
		return -ENOMEM;
	for (i = 0; i < c->count; i++)
		c->free[i] = c->count - 1 - i;
	c->free_n = c->count;
	return 0;
}

int pages_init(struct pages *p, const struct page_class_info info[PAGE__COUNT], struct errbuf *err)
{
	int i, r;

	*p = (struct pages){0};
	for (i = 0; i < PAGE__COUNT; i++) {
		if (info[i].count > PAGES_COUNT_MAX)
			return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
				"page class %d: a worker reports %u pages, more than %u", i,
				info[i].count, PAGES_COUNT_MAX);
	}
	if (info[PAGE_RAW].tokens_per_page == 0)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
			"a worker reports no pages for the sliding window");
	for (i = 0; i < PAGE__COUNT; i++) {
		r = class_init(&p->cls[i], &info[i]);
		if (r < 0) {
			pages_fini(p);
			return err_set(err, r, EXIT_OS_ERR, "no memory to account for %u pages",
				info[i].count);
		}
	}
	return 0;
}

void pages_fini(struct pages *p)
{
	int i;

	for (i = 0; i < PAGE__COUNT; i++) {
		free(p->cls[i].free);
		free(p->cls[i].limbo);
		free(p->cls[i].refs);
	}
	*p = (struct pages){0};
}

int64_t pages_grant(struct pages *p, enum page_class cls)
{
	struct pages_class *c = &p->cls[cls];
	uint32_t id;

	if (c->free_n == 0)
		return -ENOSPC;
	id = c->free[--c->free_n];
	assert(c->refs[id] == 0);
	c->refs[id] = 1;
	return id;
}

void pages_ref(struct pages *p, enum page_class cls, uint32_t id)
{
	struct pages_class *c = &p->cls[cls];

	assert(id < c->count && c->refs[id] > 0 && c->refs[id] < UINT16_MAX);
	c->refs[id]++;
}

void pages_unref(struct pages *p, enum page_class cls, uint32_t id)
{
	struct pages_class *c = &p->cls[cls];

	assert(id < c->count && c->refs[id] > 0);
	if (--c->refs[id] == 0)
		c->limbo[c->limbo_n++] = id;
}

void pages_settle(struct pages *p)
{
	int i;

	for (i = 0; i < PAGE__COUNT; i++) {
		struct pages_class *c = &p->cls[i];

		while (c->limbo_n > 0)
			c->free[c->free_n++] = c->limbo[--c->limbo_n];
	}
}

uint64_t pages_for(const struct pages *p, enum page_class cls, uint64_t positions)
{
	uint32_t per_page = p->cls[cls].tokens_per_page;

	return per_page ? DIV_UP(positions, (uint64_t)per_page) : 0;
}

bool pages_idle(const struct pages *p)
{
	int i;

	for (i = 0; i < PAGE__COUNT; i++)
		if (p->cls[i].free_n + p->cls[i].limbo_n != p->cls[i].count)
			return false;
	return true;
}
