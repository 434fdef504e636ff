#include "worker/slots.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Hands out parts of the arena; with base NULL it only counts. */
struct cutter {
	unsigned char *base;
	size_t used;
};

static void *cut(struct cutter *c, size_t bytes)
{
	unsigned char *p = c->base ? c->base + c->used : NULL;

	c->used += ALIGN_UP(bytes, (size_t)64);
	return p;
}

static void cut_slot(
	struct cutter *c, const struct shape *sh, const struct slots *s, struct slot *slot)
{
	for (int k = 0; k < PAGE__COUNT; k++)
		slot->pages[k] = cut(c, s->page_cap[k] * sizeof(uint32_t));
	slot->history = cut(c, s->context * sizeof(uint32_t));
	slot->tail = cut(c, sh->cfg.hidden * sizeof(float));
}

static void cut_layer(struct cutter *c, const struct shape *sh, uint32_t n, uint32_t layer,
	struct slot_rows *comp, struct slot_rows *index)
{
	uint32_t ratio = shape_ratio(sh, layer);

	if (!ratio)
		return;
	comp->stride = kern_compress_floats(ratio, KERN_HEAD);
	comp->base = cut(c, n * comp->stride * sizeof(float));
	if (sh->cfg.layer[layer] != MODEL_CSA)
		return;
	index->stride = kern_compress_floats(ratio, KERN_INDEX);
	index->base = cut(c, n * index->stride * sizeof(float));
}

/* Numbers and bounds; nothing is allocated. */
static struct slots bounds_of(const struct shape *sh, uint64_t context)
{
	struct slots s = {.n = sh->sequences, .context = context};

	/* Twice the window and the longest step: the coordinator may release late. */
	s.page_cap[PAGE_RAW] =
		2 * (uint32_t)DIV_UP(sh->cfg.window + sh->step_tokens, PAGE_ROWS) + 2;
	s.page_cap[PAGE_CSA] = (uint32_t)pages_for(PAGE_CSA, context) + 1;
	s.page_cap[PAGE_HCA] = (uint32_t)pages_for(PAGE_HCA, context) + 1;
	return s;
}

uint64_t slots_bytes(const struct shape *sh, uint64_t context)
{
	const struct slots s = bounds_of(sh, context);
	struct cutter c = {0};
	struct slot_rows rows;
	struct slot slot;

	for (uint32_t i = 0; i < s.n; i++)
		cut_slot(&c, sh, &s, &slot);
	for (uint32_t i = 0; i < sh->cfg.layers; i++)
		cut_layer(&c, sh, s.n, i, &rows, &rows);
	return c.used;
}

int slots_open(
	const struct shape *sh, uint64_t context, struct slots *ret_slots, struct errbuf *err)
{
	struct slots s = bounds_of(sh, context);
	size_t bytes = slots_bytes(sh, context);
	struct cutter c = {0};
	void *p = MAP_FAILED;

	s.slot = calloc(s.n, sizeof(*s.slot));
	s.comp = calloc(sh->cfg.layers, sizeof(*s.comp));
	s.index = calloc(sh->cfg.layers, sizeof(*s.index));
	if (s.slot && s.comp && s.index)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		slots_close(&s);
		return err_set(err, -ENOMEM, EXIT_OS_ERR,
			"cannot reserve %zu MiB for the state of %u sequences: lower "
			"schedule.max_sequences",
			bytes >> 20, sh->sequences);
	}
	s.arena = c.base = p;
	s.arena_bytes = bytes;
	s.slot_bytes = bytes / s.n;
	for (uint32_t i = 0; i < s.n; i++)
		cut_slot(&c, sh, &s, &s.slot[i]);
	for (uint32_t i = 0; i < sh->cfg.layers; i++)
		cut_layer(&c, sh, s.n, i, &s.comp[i], &s.index[i]);
	*ret_slots = s;
	return 0;
}

void slots_close(struct slots *s)
{
	if (s->arena)
		munmap(s->arena, s->arena_bytes);
	free(s->slot);
	free(s->comp);
	free(s->index);
	*s = (struct slots){0};
}

void slot_clear(struct slot *s)
{
	s->used = s->has_prev = s->has_tail = false;
	s->pos = 0;
	s->raw_first = 0;
	memset(s->page_n, 0, sizeof(s->page_n));
}

static int check_raw(const struct slots *s, const struct slot *slot, uint32_t window, uint64_t pos,
	uint32_t n, uint32_t release, uint32_t appended, struct errbuf *err)
{
	uint64_t oldest = pos >= window ? pos - window + 1 : 0;
	uint64_t first = (uint64_t)slot->raw_first + release;
	uint64_t kept = (uint64_t)slot->page_n[PAGE_RAW] + appended - release;

	if (release > slot->page_n[PAGE_RAW])
		return err_set(err, -EBADMSG, 0, "%u raw pages released of %u", release,
			slot->page_n[PAGE_RAW]);
	if (first * PAGE_ROWS > oldest)
		return err_set(err, -EBADMSG, 0,
			"raw page of position %" PRIu64 " released at position %" PRIu64, oldest,
			pos);
	if (kept > s->page_cap[PAGE_RAW])
		return err_set(err, -EBADMSG, 0, "%" PRIu64 " raw pages in a slot, at most %u",
			kept, s->page_cap[PAGE_RAW]);
	if ((first + kept) * PAGE_ROWS < pos + n)
		return err_set(err, -EBADMSG, 0,
			"raw pages end at position %" PRIu64 ", the step at %" PRIu64,
			(first + kept) * PAGE_ROWS, pos + n);
	return 0;
}

int slot_check_pages(const struct slots *s, const struct slot *slot, uint32_t window, uint64_t pos,
	uint32_t n, uint32_t release, const uint32_t page_n[PAGE__COUNT],
	const bool class_used[PAGE__COUNT], struct errbuf *err)
{
	static const char *const name[PAGE__COUNT] = {"raw", "csa", "hca"};

	for (int c = PAGE_CSA; c < PAGE__COUNT; c++) {
		uint64_t held = (uint64_t)slot->page_n[c] + page_n[c];

		if (page_n[c] && !class_used[c])
			return err_set(
				err, -EBADMSG, 0, "%s pages for a model without them", name[c]);
		if (class_used[c] && held < pages_for(c, pos + n))
			return err_set(err, -EBADMSG, 0,
				"%" PRIu64 " %s pages for %" PRIu64 " tokens, %" PRIu64 " needed",
				held, name[c], pos + n, pages_for(c, pos + n));
		if (held > s->page_cap[c])
			return err_set(err, -EBADMSG, 0,
				"%" PRIu64 " %s pages in a slot, at most %u", held, name[c],
				s->page_cap[c]);
	}
	return check_raw(s, slot, window, pos, n, release, page_n[PAGE_RAW], err);
}

void slot_take_pages(struct slot *slot, uint32_t release, const uint32_t *pages,
	const uint32_t page_n[PAGE__COUNT])
{
	uint32_t *raw = slot->pages[PAGE_RAW];

	memmove(raw, raw + release, (slot->page_n[PAGE_RAW] - release) * sizeof(*raw));
	slot->page_n[PAGE_RAW] -= release;
	slot->raw_first += release;
	for (int c = 0; c < PAGE__COUNT; c++) {
		memcpy(slot->pages[c] + slot->page_n[c], pages, page_n[c] * sizeof(*pages));
		slot->page_n[c] += page_n[c];
		pages += page_n[c];
	}
}
