/* What the variants of attention share: checks and the list of a row's keys. */
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/kern.h"
#include "kernels/layout.h"

static inline int kern_attention_check(const struct kern_attention_args *a)
{
	enum kern_class c = kern_class_of(a->ratio);

	if (!kern_kv_row_bytes(a->format) || (a->ratio && a->ratio != 4 && a->ratio != 128))
		return -EINVAL;
	for (uint32_t q = 0; q < a->batch->nseq; q++) {
		const struct kern_seq *s = &a->batch->seqs[q];
		uint32_t first = s->pos0 < KERN_WINDOW ? 0 : s->pos0 - KERN_WINDOW + 1;
		uint64_t end = s->pos0 + s->n;

		if (!s->n)
			continue;
		if (first / KERN_PAGE < s->raw_first ||
			(end - 1) / KERN_PAGE - s->raw_first >= s->page_n[KERN_RAW])
			return -EINVAL;
		if (a->ratio && (uint64_t)s->page_n[c] * KERN_PAGE < end / a->ratio)
			return -EINVAL;
	}
	return 0;
}

/*
 * A row's keys in order: window positions ascending, then entries ascending. kern_keys_next()
 * gives up to max encoded rows and returns how many; 0: no more.
 */
struct kern_keys {
	const struct kern_attention_args *a;
	const struct kern_seq *s;
	uint32_t pos, end;       /* raw positions left */
	uint32_t entry, visible; /* next entry, or next element of selected */
	const int32_t *selected;
};

static inline struct kern_keys kern_keys(const struct kern_attention_args *a, uint32_t row)
{
	uint32_t pos = a->batch->row_pos[row];

	return (struct kern_keys){
		.a = a,
		.s = &a->batch->seqs[a->batch->row_seq[row]],
		.pos = pos < KERN_WINDOW ? 0 : pos - KERN_WINDOW + 1,
		.end = pos + 1,
		.visible = a->ratio ? kern_visible(pos, a->ratio) : 0,
		.selected = a->ratio && a->selected ? a->selected + (size_t)row * a->k : NULL,
	};
}

static inline uint32_t kern_keys_next(struct kern_keys *k, uint32_t max, const uint8_t **at)
{
	const struct kern_attention_args *a = k->a;
	enum kern_class c = kern_class_of(a->ratio);
	uint32_t n = 0;

	for (; k->pos < k->end && n < max; k->pos++)
		at[n++] = kern_kv_at(
			kern_page(&a->raw, k->s, KERN_RAW, k->pos), a->format, k->pos % KERN_PAGE);
	while (k->entry < (k->selected ? a->k : k->visible) && n < max) {
		uint32_t e = k->selected ? (uint32_t)k->selected[k->entry] : k->entry;

		k->entry++;
		if (e < k->visible)
			at[n++] = kern_kv_at(
				kern_page(&a->entries, k->s, c, e), a->format, e % KERN_PAGE);
	}
	return n;
}

#endif
