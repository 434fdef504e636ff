#include "worker/pages.h"

#include <inttypes.h>
#include <sys/mman.h>

static const uint32_t ratio_of[PAGE__COUNT] = {[PAGE_RAW] = 1, [PAGE_CSA] = 4, [PAGE_HCA] = 128};

static const enum page_class class_of[POOL__COUNT] = {
	[POOL_RAW] = PAGE_RAW,
	[POOL_CSA] = PAGE_CSA,
	[POOL_HCA] = PAGE_HCA,
	[POOL_KEYS] = PAGE_CSA,
};

uint32_t pages_tokens(enum page_class c)
{
	return PAGE_ROWS * ratio_of[c];
}

uint64_t pages_for(enum page_class c, uint64_t tokens)
{
	return DIV_UP(tokens, pages_tokens(c));
}

/*
 * Raw pages that `sequences` sequences hold at once in steps of step_tokens: each its window, which
 * may start and end inside a page, and a page in the making; chunks add their tokens once.
 */
static uint64_t raw_pages(const struct pages_need *need, uint64_t sequences)
{
	return sequences * (DIV_UP(need->window, PAGE_ROWS) + 2) +
	       DIV_UP(need->step_tokens, PAGE_ROWS);
}

static uint64_t class_pages(const struct pages_need *need, enum page_class c, uint64_t context)
{
	return need->bytes_per_page[c] ? pages_for(c, context) : 0;
}

/* Bytes with which one sequence of `context` tokens can run. */
static uint64_t least_bytes(const struct pages_need *need, uint64_t context)
{
	uint64_t bytes = raw_pages(need, 1) * need->bytes_per_page[PAGE_RAW];

	for (int c = PAGE_CSA; c < PAGE__COUNT; c++)
		bytes += class_pages(need, c, context) * need->bytes_per_page[c];
	return bytes;
}

/* The longest context, in whole CSA pages, that fits; 0 if none does. */
static uint64_t fitting_context(const struct pages_need *need)
{
	const uint64_t unit = pages_tokens(PAGE_CSA);
	uint64_t low = 0, high = need->context / unit;

	if (least_bytes(need, need->context) <= need->memory)
		return need->context;
	while (low < high) {
		uint64_t mid = low + (high - low + 1) / 2;

		if (least_bytes(need, mid * unit) <= need->memory)
			low = mid;
		else
			high = mid - 1;
	}
	return low * unit;
}

static int refuse(const struct pages_need *need, struct errbuf *err)
{
	return err_set(err, -ENOSPC, EXIT_CONFIG_ERR,
		"cache.memory: %s%" PRIu64 " MiB cannot hold one sequence of schedule.max_context "
		"%" PRIu64 " tokens, which takes %" PRIu64
		" MiB: give more memory or a shorter context",
		need->memory_auto ? "auto gives " : "", need->memory >> 20, need->context,
		(least_bytes(need, need->context) >> 20) + 1);
}

/* Shares `rest` bytes among the compressed classes: one sequence's need each, then in proportion.
 */
static void share_rest(
	const struct pages_need *need, uint64_t rest, uint64_t context, uint64_t count[PAGE__COUNT])
{
	uint64_t one = least_bytes(need, context) - least_bytes(need, 0);
	uint64_t others = one * (need->sequences - 1);
	double share = others > rest - one ? (double)(rest - one) / (double)others : 1;

	for (int c = PAGE_CSA; c < PAGE__COUNT; c++) {
		uint64_t pages = class_pages(need, c, context);

		count[c] = pages + (uint64_t)((double)(pages * (need->sequences - 1)) * share);
	}
}

int pages_make_plan(const struct pages_need *need, struct pages_plan *ret_plan, struct errbuf *err)
{
	struct pages_plan plan = {.context = need->context};
	uint64_t count[PAGE__COUNT], raw_bytes = need->bytes_per_page[PAGE_RAW], rest;

	if (need->context_auto)
		plan.context = fitting_context(need);
	if (plan.context == 0 || least_bytes(need, plan.context) > need->memory)
		return refuse(need, err);
	rest = need->memory - (least_bytes(need, plan.context) - least_bytes(need, 0));
	rest = MIN(rest, MAX(need->memory / 2, least_bytes(need, 0)));
	count[PAGE_RAW] = MIN(raw_pages(need, need->sequences), rest / raw_bytes);
	share_rest(need, need->memory - count[PAGE_RAW] * raw_bytes, plan.context, count);
	for (int c = 0; c < PAGE__COUNT; c++) {
		if (!need->bytes_per_page[c])
			continue;
		count[c] = MIN(count[c], (uint64_t)INT32_MAX);
		plan.class[c] = (struct page_class_info){
			.tokens_per_page = pages_tokens(c),
			.count = (uint32_t)count[c],
			.bytes_per_page = need->bytes_per_page[c],
		};
		plan.bytes += count[c] * need->bytes_per_page[c];
	}
	*ret_plan = plan;
	return 0;
}

int pools_open(const struct pages_plan *plan, const uint32_t layers[POOL__COUNT],
	const uint64_t page_bytes[POOL__COUNT], struct pools *ret_pools, struct errbuf *err)
{
	struct pools pools = {0};

	for (int k = 0; k < POOL__COUNT; k++) {
		struct pool *p = &pools.pool[k];
		void *base;

		p->page_bytes = page_bytes[k];
		p->layers = layers[k];
		p->count = plan->class[class_of[k]].count;
		p->layer_bytes = p->count * p->page_bytes;
		if (!p->layers || !p->layer_bytes)
			continue;
		base = mmap(NULL, p->layers * p->layer_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (base == MAP_FAILED) {
			pools_close(&pools);
			return err_set(err, -ENOMEM, EXIT_OS_ERR,
				"cannot reserve %" PRIu64 " MiB of pages: lower cache.memory or "
				"schedule.max_sequences",
				plan->bytes >> 20);
		}
		/* a step reads rows all over the pools: with small pages most of them miss the TLB
		 */
		(void)madvise(base, p->layers * p->layer_bytes, MADV_HUGEPAGE);
		p->base = base;
	}
	*ret_pools = pools;
	return 0;
}

void pools_close(struct pools *p)
{
	for (int k = 0; k < POOL__COUNT; k++)
		if (p->pool[k].base)
			munmap(p->pool[k].base, p->pool[k].layers * p->pool[k].layer_bytes);
	*p = (struct pools){0};
}
