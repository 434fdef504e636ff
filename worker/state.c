#include "worker/state.h"

#include <inttypes.h>

#include "kernels/layout.h"
#include "shm/sum.h"
#include "worker/rank_impl.h"

/* ---- the walk ------------------------------------------------------------------------------- */

enum io_mode { IO_COUNT, IO_SAVE, IO_LOAD };

struct io {
	enum io_mode mode;
	unsigned char *at; /* in the blob */
	size_t bytes;      /* walked so far */
};

static void io_copy(struct io *io, void *memory, size_t n)
{
	if (io->mode == IO_SAVE)
		memcpy(io->at + io->bytes, memory, n);
	else if (io->mode == IO_LOAD)
		memcpy(memory, io->at + io->bytes, n);
	io->bytes += n;
}

static uint64_t oldest_row(const struct rank *r, uint64_t pos)
{
	uint32_t window = r->sh.cfg.window;

	/* The next query sees pos-window+1 .. pos, pos itself being its own row. */
	return pos >= window ? pos - window + 1 : 0;
}

/* `n` rows from `first` on, where row i lies on page i / PAGE_ROWS of pages[]. */
static void walk_rows(struct io *io, const struct pool *pool, uint32_t nth, const uint32_t *pages,
	uint64_t first, uint64_t n, size_t row_bytes)
{
	unsigned char *base = pool_layer(pool, nth);

	if (io->mode == IO_COUNT) { /* pages need not be known */
		io->bytes += n * row_bytes;
		return;
	}
	while (n) {
		uint64_t in_page = first % PAGE_ROWS, rows = MIN(n, PAGE_ROWS - in_page);
		unsigned char *page = base + pages[first / PAGE_ROWS] * pool->page_bytes;

		io_copy(io, page + in_page * row_bytes, rows * row_bytes);
		first += rows;
		n -= rows;
	}
}

static void walk_raw(struct io *io, const struct rank *r, const struct slot *slot)
{
	uint64_t first = oldest_row(r, slot->pos);
	uint64_t skipped = (uint64_t)slot->raw_first * PAGE_ROWS;

	for (uint32_t i = 0; i < r->sh.cfg.layers; i++)
		walk_rows(io, &r->pools.pool[POOL_RAW], i, slot->pages[PAGE_RAW], first - skipped,
			slot->pos - first, kern_kv_row_bytes(r->sh.kv));
}

/* Saved rows lie in a ring by position (kern_compress_args.state). */
static void walk_open(
	struct io *io, const struct slot_rows *rows, uint32_t slot, uint32_t ratio, uint64_t pos)
{
	uint64_t ring = ratio == MODEL_CSA_RATIO ? 2 * ratio : ratio;
	uint64_t first = pos / ratio * ratio;
	size_t floats = rows->stride / ring;
	float *base = rows->base + slot * rows->stride;

	if (ratio == MODEL_CSA_RATIO && first)
		first -= ratio;
	for (uint64_t p = first; p < pos; p++)
		io_copy(io, base + p % ring * floats, floats * sizeof(float));
}

/* The first n keys of a page: values of all, then scales of all (layout.h has them otherwise). */
static void walk_key_page(struct io *io, enum kern_dtype format, void *page, uint32_t n)
{
	size_t v = kern_index_value_bytes(format), s = kern_index_scale_bytes(format);
	unsigned char *value = io->at + io->bytes, *scale = value + n * v;

	for (uint32_t i = 0; i < n; i++) {
		struct kern_index_at at = kern_index_at(page, format, i);

		if (io->mode == IO_SAVE)
			kern_index_read(format, at, value + i * v, scale + i * s);
		else
			kern_index_write(format, at, value + i * v, scale + i * s);
	}
	io->bytes += n * (v + s);
}

static void walk_keys(struct io *io, const struct rank *r, const struct slot *slot, uint32_t nth)
{
	const struct pool *pool = &r->pools.pool[POOL_KEYS];
	uint64_t left = slot->pos / MODEL_CSA_RATIO;

	if (io->mode == IO_COUNT) {
		io->bytes += left * (kern_index_value_bytes(r->sh.key) +
					    kern_index_scale_bytes(r->sh.key));
		return;
	}
	for (const uint32_t *page = slot->pages[PAGE_CSA]; left; page++) {
		uint32_t n = (uint32_t)MIN(left, (uint64_t)PAGE_ROWS);

		walk_key_page(io, r->sh.key, pool_layer(pool, nth) + *page * pool->page_bytes, n);
		left -= n;
	}
}

static void walk_entries(struct io *io, const struct rank *r, const struct slot *slot)
{
	for (uint32_t i = 0; i < r->sh.cfg.layers; i++) {
		uint32_t ratio = shape_ratio(&r->sh, i), nth = r->sh.nth[i];
		bool csa = ratio == MODEL_CSA_RATIO;

		if (!ratio)
			continue;
		walk_rows(io, &r->pools.pool[csa ? POOL_CSA : POOL_HCA], nth,
			slot->pages[csa ? PAGE_CSA : PAGE_HCA], 0, slot->pos / ratio,
			kern_kv_row_bytes(r->sh.kv));
		if (csa)
			walk_keys(io, r, slot, nth);
	}
}

/* Everything after the header, for a slot whose pos, pages and has_tail are set. */
static void walk(struct io *io, const struct rank *r, uint32_t nth, const struct slot *slot)
{
	io_copy(io, slot->history, slot->pos * sizeof(*slot->history));
	if (slot->has_tail)
		io_copy(io, slot->tail, r->sh.cfg.hidden * sizeof(*slot->tail));
	walk_raw(io, r, slot);
	for (uint32_t i = 0; i < r->sh.cfg.layers; i++) {
		if (r->slots.comp[i].base)
			walk_open(io, &r->slots.comp[i], nth, shape_ratio(&r->sh, i), slot->pos);
		if (r->slots.index[i].base)
			walk_open(io, &r->slots.index[i], nth, shape_ratio(&r->sh, i), slot->pos);
	}
	walk_entries(io, r, slot);
}

static size_t state_bytes(const struct rank *r, const struct slot *slot)
{
	struct io io = {.mode = IO_COUNT, .bytes = sizeof(struct state_hdr)};

	walk(&io, r, 0, slot);
	return io.bytes;
}

/* ---- export ---- */

uint64_t state_sum(const void *blob, size_t bytes)
{
	struct state_hdr hdr;

	memcpy(&hdr, blob, sizeof(hdr));
	hdr.sum = 0;
	return sum_bytes((const unsigned char *)blob + sizeof(hdr), bytes - sizeof(hdr),
		sum_bytes(&hdr, sizeof(hdr), 0));
}

int64_t rank_export(struct rank *r, uint32_t slot, void *buf, size_t cap)
{
	struct io io = {.mode = IO_SAVE, .at = buf, .bytes = sizeof(struct state_hdr)};
	const struct slot *s;
	struct state_hdr hdr;
	size_t bytes;

	if (slot >= r->slots.n || !r->slots.slot[slot].used)
		return -ENOENT;
	s = &r->slots.slot[slot];
	bytes = state_bytes(r, s);
	if (!buf)
		return (int64_t)bytes;
	if (bytes > cap)
		return -ENOSPC;
	hdr = (struct state_hdr){
		.magic = STATE_MAGIC,
		.version = STATE_VERSION,
		.flags = (s->has_prev ? STATE_PREV : 0) | (s->has_tail ? STATE_TAIL : 0),
		.bytes = bytes,
		.fingerprint = r->fingerprint,
		.pos = s->pos,
		.prev = s->prev,
	};
	walk(&io, r, slot, s);
	memcpy(buf, &hdr, sizeof(hdr));
	hdr.sum = state_sum(buf, bytes);
	memcpy(buf, &hdr, sizeof(hdr));
	return (int64_t)bytes;
}

/* ---- import ---- */

static int damaged(struct errbuf *err, const char *what)
{
	return err_set(err, -EBADMSG, EXIT_DATA_ERR, "state refused: damaged: %s", what);
}

/* What the slot will be, but for its pages; ret_slot's arrays are not set. */
static int read_header(const struct rank *r, const void *blob, size_t bytes,
	struct state_hdr *ret_hdr, struct errbuf *err)
{
	struct state_hdr hdr;

	if (bytes < sizeof(hdr))
		return damaged(err, "shorter than its header");
	memcpy(&hdr, blob, sizeof(hdr));
	if (hdr.magic != STATE_MAGIC)
		return damaged(err, "not a state");
	if (hdr.version != STATE_VERSION)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"state refused: its version is %u, this program reads %u", hdr.version,
			STATE_VERSION);
	if (hdr.bytes != bytes)
		return damaged(err, "its length is not what its header says");
	if (hdr.sum != state_sum(blob, bytes))
		return damaged(err, "its checksum does not match");
	if (hdr.fingerprint != r->fingerprint)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"state refused: it comes from another checkpoint, number of workers or "
			"[attention] configuration");
	if (hdr.pos == 0 || hdr.pos > r->pages.context || hdr.flags & ~(uint32_t)STATE__ALL ||
		hdr.prev >= r->sh.cfg.vocab)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"state refused: %" PRIu64 " tokens do not fit this context of %" PRIu64,
			hdr.pos, r->pages.context);
	*ret_hdr = hdr;
	return 0;
}

static int check_history(
	const struct rank *r, const void *blob, const struct state_hdr *hdr, struct errbuf *err)
{
	const unsigned char *at = (const unsigned char *)blob + sizeof(*hdr);

	if ((hdr->bytes - sizeof(*hdr)) / sizeof(uint32_t) < hdr->pos)
		return damaged(err, "its length does not fit its position");
	for (uint64_t i = 0; i < hdr->pos; i++) {
		uint32_t token;

		memcpy(&token, at + i * sizeof(token), sizeof(token));
		if (token >= r->sh.cfg.vocab)
			return damaged(err, "a token outside the vocabulary");
	}
	return 0;
}

static void pages_needed(
	const struct rank *r, const struct state_hdr *hdr, uint32_t ret_page_n[PAGE__COUNT])
{
	uint64_t oldest = oldest_row(r, hdr->pos);

	ret_page_n[PAGE_RAW] = (uint32_t)(DIV_UP(hdr->pos, PAGE_ROWS) - oldest / PAGE_ROWS);
	for (int c = PAGE_CSA; c < PAGE__COUNT; c++)
		ret_page_n[c] = r->pages.class[c].count ? (uint32_t)pages_for(c, hdr->pos) : 0;
}

int rank_import_pages(const struct rank *r, const void *blob, size_t bytes,
	uint32_t ret_page_n[PAGE__COUNT], struct errbuf *err)
{
	struct state_hdr hdr;
	int ret;

	ret = read_header(r, blob, bytes, &hdr, err);
	if (ret == 0)
		pages_needed(r, &hdr, ret_page_n);
	return ret;
}

static int check_pages(const struct rank *r, const struct state_hdr *hdr, const uint32_t *pages,
	const uint32_t page_n[PAGE__COUNT], struct errbuf *err)
{
	uint32_t need[PAGE__COUNT];

	pages_needed(r, hdr, need);
	for (int c = 0; c < PAGE__COUNT; c++) {
		if (page_n[c] != need[c])
			return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
				"state refused: %u pages of class %d given, %u needed", page_n[c],
				c, need[c]);
		for (uint32_t i = 0; i < page_n[c]; i++, pages++)
			if (*pages >= r->pages.class[c].count)
				return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
					"state refused: page %u of class %d does not exist", *pages,
					c);
	}
	return 0;
}

int rank_import(struct rank *r, uint32_t slot, const void *blob, size_t bytes,
	const uint32_t *pages, const uint32_t page_n[PAGE__COUNT], struct errbuf *err)
{
	struct io io = {
		.mode = IO_LOAD, .at = (unsigned char *)blob, .bytes = sizeof(struct state_hdr)};
	struct state_hdr hdr;
	struct slot *s, next;
	int ret;

	if (slot >= r->slots.n)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR, "state refused: no slot %u", slot);
	ret = read_header(r, blob, bytes, &hdr, err);
	if (ret == 0)
		ret = check_history(r, blob, &hdr, err);
	if (ret == 0)
		ret = check_pages(r, &hdr, pages, page_n, err);
	if (ret < 0)
		return ret;

	s = &r->slots.slot[slot];
	next = *s;
	slot_clear(&next);
	next.used = true;
	next.pos = hdr.pos;
	next.raw_first = (uint32_t)(oldest_row(r, hdr.pos) / PAGE_ROWS);
	next.has_prev = hdr.flags & STATE_PREV;
	next.prev = hdr.prev;
	next.has_tail = hdr.flags & STATE_TAIL;
	if (state_bytes(r, &next) != bytes)
		return damaged(err, "its length does not fit its position");
	*s = next;
	slot_take_pages(s, 0, pages, page_n);
	walk(&io, r, slot, s);
	return 0;
}

/* ---- fingerprint ---- */

uint64_t state_fingerprint(const struct rank *r)
{
	const struct model_config *c = &r->sh.cfg;
	const uint64_t numbers[] = {STATE_VERSION, r->w.fingerprint, r->sh.world, r->sh.kv,
		r->sh.key, r->sh.act, r->sh.qat, r->sh.index_topk, c->hidden, c->layers, c->vocab,
		c->window, c->heads, c->experts, c->experts_per_token, c->yarn, c->yarn_original};
	const double reals[] = {c->hc_eps, c->rms_eps, c->routed_scale, c->swiglu_limit,
		c->rope_theta, c->compress_rope_theta, c->yarn_factor, c->yarn_beta_fast,
		c->yarn_beta_slow};
	uint64_t sum = sum_bytes(numbers, sizeof(numbers), 1);

	sum = sum_bytes(reals, sizeof(reals), sum);
	return sum_bytes(c->layer, c->layers * sizeof(c->layer[0]), sum);
}
