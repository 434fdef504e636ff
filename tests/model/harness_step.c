#include "tests/model/harness_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- pages ---------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

void harness_pages_open(struct harness *h, uint64_t seed)
{
	h->poison = seed != 0;
	h->slots = calloc(h->capacity.max_sequences, sizeof(*h->slots));
	assert_non_null(h->slots);
	for (int c = 0; c < PAGE__COUNT; c++) {
		uint32_t n = h->capacity.classes[c].count;

		h->free_pages[c] = malloc(sizeof(uint32_t) * MAX(n, 1u));
		assert_non_null(h->free_pages[c]);
		h->free_n[c] = n;
		for (uint32_t i = 0; i < n; i++)
			h->free_pages[c][i] = n - 1 - i;
		for (uint32_t i = n; seed && i > 1; i--) {
			uint32_t j = (uint32_t)(next_random(&seed) % i);
			uint32_t swap = h->free_pages[c][i - 1];

			h->free_pages[c][i - 1] = h->free_pages[c][j];
			h->free_pages[c][j] = swap;
		}
		for (uint32_t s = 0; s < h->capacity.max_sequences; s++) {
			h->slots[s].pages[c] = malloc(sizeof(uint32_t) * MAX(n, 1u));
			assert_non_null(h->slots[s].pages[c]);
		}
	}
}

void harness_pages_close(struct harness *h)
{
	for (int c = 0; c < PAGE__COUNT; c++) {
		free(h->free_pages[c]);
		for (uint32_t s = 0; h->slots && s < h->capacity.max_sequences; s++)
			free(h->slots[s].pages[c]);
	}
	free(h->slots);
}

static void poison(struct harness *h, enum page_class class, uint32_t page)
{
	static const enum page_class of[POOL__COUNT] = {
		[POOL_RAW] = PAGE_RAW,
		[POOL_CSA] = PAGE_CSA,
		[POOL_HCA] = PAGE_HCA,
		[POOL_KEYS] = PAGE_CSA,
	};

	for (uint32_t r = 0; r < h->world; r++)
		for (int k = 0; k < POOL__COUNT; k++) {
			const struct pool *p = &h->ranks[r]->pools.pool[k];

			for (uint32_t i = 0; of[k] == class && i < p->layers; i++)
				memset(pool_layer(p, i) + page * p->page_bytes, 0xff,
					p->page_bytes);
		}
}

/* Scratch holds nothing that a later step may read. */
static void poison_work(struct harness *h)
{
	for (uint32_t r = 0; r < h->world; r++)
		memset(h->ranks[r]->work.arena, 0xff, h->ranks[r]->work.bytes);
}

/* Compressor rows of a slot that is empty hold nothing that its next sequence may read. */
static void poison_rows(struct harness *h, uint32_t slot)
{
	for (uint32_t r = 0; r < h->world; r++)
		for (uint32_t i = 0; i < h->layers; i++) {
			const struct slot_rows *rows[] = {
				&h->ranks[r]->slots.comp[i], &h->ranks[r]->slots.index[i]};

			for (int k = 0; k < 2; k++)
				if (rows[k]->base)
					memset(rows[k]->base + slot * rows[k]->stride, 0xff,
						rows[k]->stride * sizeof(float));
		}
}

static void append_page(struct harness *h, struct harness_slot *s, enum page_class c)
{
	uint32_t page;

	if (!h->free_n[c])
		fail_msg("the harness is out of pages of class %d: raise cache.memory", c);
	page = h->free_pages[c][--h->free_n[c]];
	if (h->poison)
		poison(h, c, page);
	s->pages[c][s->n[c]++] = page;
}

static void drop_pages(struct harness *h, struct harness_slot *s, enum page_class c, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		h->free_pages[c][h->free_n[c]++] = s->pages[c][i];
	memmove(s->pages[c], s->pages[c] + n, (s->n[c] - n) * sizeof(uint32_t));
	s->n[c] -= n;
	if (c == PAGE_RAW)
		s->raw_first += n;
}

void harness_drop(struct harness *h, uint32_t slot)
{
	struct harness_slot *s = &h->slots[slot];

	for (int c = 0; c < PAGE__COUNT; c++)
		drop_pages(h, s, c, s->n[c]);
	s->pos = s->raw_first = 0;
}

/* Pages that must be appended for positions up to `end`. */
static uint32_t missing_pages(
	const struct harness *h, const struct harness_slot *s, enum page_class c, uint64_t end)
{
	uint32_t tokens = h->capacity.classes[c].tokens_per_page;
	uint64_t have = s->n[c] + (c == PAGE_RAW ? s->raw_first : 0);

	return tokens ? (uint32_t)(DIV_UP(end, tokens) - have) : 0;
}

static uint32_t stale_raw_pages(const struct harness_slot *s)
{
	uint64_t oldest = s->pos > 127 ? s->pos - 127 : 0;

	return (uint32_t)(oldest / 64 - s->raw_first);
}

/* ---- a step's message ----------------------------------------------------------------------- */

static const struct msg_sample greedy = {.top_p = 1, .repetition_penalty = 1};

static struct msg_step count_parts(
	const struct harness *h, const struct harness_part *parts, uint32_t n)
{
	struct msg_step counts = {.nseq = n, .nsample = n};

	for (uint32_t i = 0; i < n; i++) {
		const struct harness_part *p = &parts[i];
		const struct harness_slot *s = &h->slots[p->slot];

		counts.ntoken += p->n + (p->sampling ? p->sampling->banned_n : 0);
		counts.nbias += p->sampling ? p->sampling->bias_n : 0;
		for (int c = 0; c < PAGE__COUNT; c++)
			counts.npage += missing_pages(h, s, c, s->pos + p->n);
	}
	return counts;
}

/* Writable parts of the message and how far they are filled. */
struct fill {
	struct msg_seq *seqs;
	struct msg_sample *samples;
	struct msg_bias *biases;
	uint32_t *tokens, *pages;
	uint32_t token_n, bias_n, page_n;
};

static void fill_sample(struct fill *f, uint32_t i, const struct harness_part *p)
{
	struct msg_sample *m = &f->samples[i];

	*m = p->sampling ? *p->sampling : greedy;
	m->bias_off = f->bias_n;
	m->banned_off = f->token_n;
	if (m->bias_n)
		memcpy(f->biases + f->bias_n, p->bias, m->bias_n * sizeof(*p->bias));
	if (m->banned_n)
		memcpy(f->tokens + f->token_n, p->banned, m->banned_n * sizeof(*p->banned));
	f->bias_n += m->bias_n;
	f->token_n += m->banned_n;
}

static void fill_seq(struct harness *h, struct fill *f, uint32_t i, const struct harness_part *p)
{
	struct harness_slot *s = &h->slots[p->slot];
	struct msg_seq *q = &f->seqs[i];

	*q = (struct msg_seq){
		.slot = p->slot,
		.flags = (s->pos ? 0 : SEQ_FIRST) | (p->sample ? SEQ_SAMPLE : 0) |
			 (p->prev ? SEQ_PREV : 0) | (p->prompt_logprobs ? SEQ_PROMPT_LOGPROBS : 0),
		.pos = s->pos,
		.n = p->n,
		.token_off = f->token_n,
		.page_off = f->page_n,
		.raw_release = stale_raw_pages(s),
		.sample = i,
	};
	if (p->prev)
		f->tokens[f->token_n] = 0;
	else
		memcpy(f->tokens + f->token_n, p->tokens, p->n * sizeof(*p->tokens));
	f->token_n += p->n;
	for (int c = 0; c < PAGE__COUNT; c++) {
		q->page_n[c] = missing_pages(h, s, c, s->pos + p->n);
		for (uint32_t k = 0; k < q->page_n[c]; k++) {
			append_page(h, s, c);
			f->pages[f->page_n++] = s->pages[c][s->n[c] - 1];
		}
	}
	drop_pages(h, s, PAGE_RAW, q->raw_release);
	fill_sample(f, i, p);
}

static void *build_step(
	struct harness *h, struct harness_part *parts, uint32_t n, struct msg_step_view *ret_view)
{
	struct msg_step counts = count_parts(h, parts, n);
	int64_t bytes = msg_step_layout(NULL, 0, &counts, 1, ret_view);
	struct errbuf err = {0};
	struct fill f;
	void *buf;

	assert_true(bytes > 0);
	buf = malloc((size_t)bytes);
	assert_non_null(buf);
	assert_true(msg_step_layout(buf, (size_t)bytes, &counts, 1, ret_view) == bytes);
	f = (struct fill){
		.seqs = (struct msg_seq *)ret_view->seqs,
		.samples = (struct msg_sample *)ret_view->samples,
		.biases = (struct msg_bias *)ret_view->biases,
		.tokens = (uint32_t *)ret_view->tokens,
		.pages = (uint32_t *)ret_view->pages,
	};
	for (uint32_t i = 0; i < n; i++) {
		if (h->poison && h->slots[parts[i].slot].pos == 0)
			poison_rows(h, parts[i].slot);
		fill_seq(h, &f, i, &parts[i]);
	}
	if (msg_step_parse(buf, (size_t)bytes, ret_view, &err) < 0)
		fail_msg("the harness made a bad step: %s", err.text);
	return buf;
}

/* ---- running it ----------------------------------------------------------------------------- */

static int step_rank(struct harness *h, uint32_t rank, void *arg, struct errbuf *err)
{
	size_t bytes;

	return rank_step(h->ranks[rank], arg, rank == 0 ? h->reply : NULL,
		rank == 0 ? h->reply_cap : 0, &bytes, err);
}

int harness_try_step(struct harness *h, const struct msg_step_view *step, struct errbuf *err)
{
	struct rank_hooks hooks = {0};
	size_t need = rank_reply_bytes(step);

	if (need > h->reply_cap) {
		free(h->reply);
		h->reply = malloc(need);
		assert_non_null(h->reply);
		h->reply_cap = need;
	}
	if (h->poison && h->steps++ % 7 == 0)
		poison_work(h);
	if (h->parts)
		harness_out_hooks(h, &hooks);
	for (uint32_t r = 0; r < h->world; r++) {
		rank_set_hooks(h->ranks[r], &hooks);
		/* Rank 0 shows what it chose; logits need everybody's part. */
		hooks.on_index = NULL;
		hooks.on_route = NULL;
	}
	return harness_on_all(h, step_rank, (void *)step, err);
}

/* The reports of a part: prompt tokens, then the sampled one. */
static void read_part(
	struct harness *h, struct harness_part *p, const struct msg_result_view *v, uint32_t *at)
{
	uint32_t first = *at;

	p->all_alts = v->alts;
	p->prompt_tokens = v->tokens + first;
	while (*at < v->result->ntoken && v->tokens[*at].slot == p->slot &&
		v->tokens[*at].flags & MSG_TOKEN_PROMPT)
		++*at;
	p->prompt_token_n = *at - first;
	if (!p->sample)
		return;
	assert_true(*at < v->result->ntoken);
	p->sampled = v->tokens[(*at)++];
	assert_int_equal(p->sampled.slot, p->slot);
	p->alts = v->alts + p->sampled.alt_off;
	h->slots[p->slot].sampled = p->sampled.token;
}

static void read_reply(struct harness *h, struct harness_part *parts, uint32_t n)
{
	struct msg_result_view view;
	struct errbuf err = {0};
	uint32_t at = 0;

	if (msg_result_parse(h->reply, ((struct msg_hdr *)h->reply)->bytes, &view, &err) < 0)
		fail_msg("bad result: %s", err.text);
	for (uint32_t i = 0; i < n; i++)
		read_part(h, &parts[i], &view, &at);
	assert_int_equal(at, view.result->ntoken);
}

int harness_try_run(struct harness *h, struct harness_part *parts, uint32_t n, struct errbuf *err)
{
	struct msg_step_view view;
	void *buf = build_step(h, parts, n, &view);
	int ret;

	for (uint32_t i = 0; i < n; i++)
		if (parts[i].out)
			harness_out_begin(parts[i].out, h->slots[parts[i].slot].pos,
				parts[i].prev ? &h->slots[parts[i].slot].sampled : parts[i].tokens,
				parts[i].n);
	h->parts = parts;
	h->part_n = n;
	ret = harness_try_step(h, &view, err);
	h->parts = NULL;
	free(buf);
	if (ret < 0)
		return ret;
	for (uint32_t i = 0; i < n; i++)
		h->slots[parts[i].slot].pos += parts[i].n;
	read_reply(h, parts, n);
	return 0;
}

/* ---- state ---------------------------------------------------------------------------------- */

void *harness_export(struct harness *h, uint32_t slot, size_t *ret_bytes)
{
	int64_t bytes = rank_export(h->ranks[0], slot, NULL, 0);
	void *blob, *other;

	if (bytes < 0)
		fail_msg("slot %u is empty", slot);
	blob = malloc((size_t)bytes);
	other = malloc((size_t)bytes);
	assert_non_null(blob);
	assert_non_null(other);
	assert_true(rank_export(h->ranks[0], slot, blob, (size_t)bytes) == bytes);
	for (uint32_t r = 1; r < h->world; r++) {
		assert_true(rank_export(h->ranks[r], slot, other, (size_t)bytes) == bytes);
		assert_memory_equal(blob, other, (size_t)bytes);
	}
	free(other);
	*ret_bytes = (size_t)bytes;
	return blob;
}

int harness_try_import(
	struct harness *h, uint32_t slot, const void *blob, size_t bytes, struct errbuf *err)
{
	struct harness_slot *s = &h->slots[slot];
	uint32_t n[PAGE__COUNT], *pages, at = 0;
	struct state_hdr hdr;
	int ret;

	ret = rank_import_pages(h->ranks[0], blob, bytes, n, err);
	if (ret < 0)
		return ret;
	harness_drop(h, slot);
	pages = malloc((n[0] + n[1] + n[2] + 1) * sizeof(*pages));
	assert_non_null(pages);
	for (int c = 0; c < PAGE__COUNT; c++)
		for (uint32_t i = 0; i < n[c]; i++) {
			append_page(h, s, c);
			pages[at++] = s->pages[c][i];
		}
	for (uint32_t r = 0; ret == 0 && r < h->world; r++)
		ret = rank_import(h->ranks[r], slot, blob, bytes, pages, n, err);
	free(pages);
	if (ret < 0) {
		harness_drop(h, slot);
		return ret;
	}
	memcpy(&hdr, blob, sizeof(hdr));
	s->pos = hdr.pos;
	s->raw_first = DIV_UP(hdr.pos, PAGE_ROWS) - n[PAGE_RAW];
	s->sampled = hdr.prev;
	return 0;
}

void harness_import(struct harness *h, uint32_t slot, const void *blob, size_t bytes)
{
	struct errbuf err = {0};

	if (harness_try_import(h, slot, blob, bytes, &err) < 0)
		fail_msg("import refused: %s", err.text);
}
