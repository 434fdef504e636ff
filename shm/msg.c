#include "config.h"

#include "shm/msg.h"

#include <stdbool.h>
#include <string.h>

#define PART_ALIGN 8

/* Both sides are built from one source, but a hole in a struct would carry stray bytes, and a size
 * that is no multiple of 8 would misalign what follows. */
_Static_assert(sizeof(struct msg_hdr) == 16, "msg_hdr");
_Static_assert(sizeof(struct msg_step) == 24, "msg_step");
_Static_assert(sizeof(struct msg_seq) == 48, "msg_seq");
_Static_assert(sizeof(struct msg_sample) == 72, "msg_sample");
_Static_assert(sizeof(struct msg_bias) == 8, "msg_bias");
_Static_assert(sizeof(struct msg_result) == 24, "msg_result");
_Static_assert(sizeof(struct msg_token) == 40, "msg_token");
_Static_assert(sizeof(struct msg_alt) == 8, "msg_alt");
_Static_assert(sizeof(struct msg_failed) == 248, "msg_failed");

const char *msg_type_name(uint32_t type)
{
	switch (type) {
#define X(name, value, doc)                                                                        \
	case value:                                                                                \
		return #name;
		MSG_TYPES(X)
#undef X
	default:
		return "?";
	}
}

PRINTF_LIKE(2, 3)
static int bad(struct errbuf *err, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR, "bad message: %s", text);
}

int msg_hdr_parse(const void *buf, size_t bytes, struct errbuf *err)
{
	const struct msg_hdr *hdr = buf;

	if ((uintptr_t)buf % PART_ALIGN)
		return bad(err, "it does not begin on 8 bytes");
	if (bytes < sizeof(*hdr))
		return bad(err, "%zu bytes are no header", bytes);
	if (hdr->bytes != bytes)
		return bad(err, "its header says %u bytes, the record has %zu", hdr->bytes, bytes);
	if (msg_type_name(hdr->type)[0] == '?')
		return bad(err, "type %u is unknown", hdr->type);
	return (int)hdr->type;
}

static int check_type(const void *buf, size_t bytes, enum msg_type want, struct errbuf *err)
{
	int type = msg_hdr_parse(buf, bytes, err);

	if (type < 0)
		return type;
	if (type != (int)want)
		return bad(err, "%s instead of %s", msg_type_name((uint32_t)type),
			msg_type_name(want));
	return 0;
}

/* ---- layout: the parts one after the other, each on 8 bytes ---- */

struct place {
	uint8_t *base; /* NULL: only counting */
	uint64_t off;
};

static void *place(struct place *p, uint64_t count, uint64_t size)
{
	void *at = p->base ? p->base + p->off : NULL;

	p->off += ALIGN_UP(count * size, PART_ALIGN);
	return at;
}

/* Counts are 32 bits and parts at most 72 bytes: none of this overflows 64 bits. */
static uint64_t place_step(void *base, const struct msg_step *n, struct msg_step_view *view)
{
	struct place p = {.base = base};

	view->hdr = place(&p, 1, sizeof(*view->hdr));
	view->step = place(&p, 1, sizeof(*view->step));
	view->seqs = place(&p, n->nseq, sizeof(*view->seqs));
	view->samples = place(&p, n->nsample, sizeof(*view->samples));
	view->biases = place(&p, n->nbias, sizeof(*view->biases));
	view->tokens = place(&p, n->ntoken, sizeof(*view->tokens));
	view->pages = place(&p, n->npage, sizeof(*view->pages));
	return p.off;
}

static uint64_t place_result(void *base, const struct msg_result *n, struct msg_result_view *view)
{
	struct place p = {.base = base};

	view->hdr = place(&p, 1, sizeof(*view->hdr));
	view->result = place(&p, 1, sizeof(*view->result));
	view->tokens = place(&p, n->ntoken, sizeof(*view->tokens));
	view->alts = place(&p, n->nalt, sizeof(*view->alts));
	return p.off;
}

static void write_hdr(void *buf, enum msg_type type, uint64_t bytes, uint64_t step)
{
	struct msg_hdr hdr = {.type = type, .bytes = (uint32_t)bytes, .step = step};

	memcpy(buf, &hdr, sizeof(hdr));
}

int64_t msg_step_layout(void *buf, size_t cap, const struct msg_step *counts, uint64_t step,
	struct msg_step_view *ret_view)
{
	struct msg_step_view view;
	uint64_t bytes = place_step(NULL, counts, &view);

	if (bytes > UINT32_MAX)
		return -EMSGSIZE;
	if (!buf)
		return (int64_t)bytes;
	if (bytes > cap)
		return -EMSGSIZE;
	/* the holes between parts must not carry what the ring held before */
	memset(buf, 0, bytes);
	place_step(buf, counts, ret_view);
	write_hdr(buf, MSG_STEP, bytes, step);
	memcpy((uint8_t *)buf + sizeof(struct msg_hdr), counts, sizeof(*counts));
	return (int64_t)bytes;
}

int64_t msg_result_layout(void *buf, size_t cap, const struct msg_result *counts, uint64_t step,
	struct msg_result_view *ret_view)
{
	struct msg_result_view view;
	uint64_t bytes = place_result(NULL, counts, &view);

	if (bytes > UINT32_MAX)
		return -EMSGSIZE;
	if (!buf)
		return (int64_t)bytes;
	if (bytes > cap)
		return -EMSGSIZE;
	memset(buf, 0, bytes);
	place_result(buf, counts, ret_view);
	write_hdr(buf, MSG_RESULT, bytes, step);
	memcpy((uint8_t *)buf + sizeof(struct msg_hdr), counts, sizeof(*counts));
	return (int64_t)bytes;
}

int64_t msg_stop_build(void *buf, size_t cap, uint64_t step)
{
	if (!buf)
		return sizeof(struct msg_hdr);
	if (cap < sizeof(struct msg_hdr))
		return -EMSGSIZE;
	write_hdr(buf, MSG_STOP, sizeof(struct msg_hdr), step);
	return sizeof(struct msg_hdr);
}

int64_t msg_failed_build(void *buf, size_t cap, uint64_t step, int error, const char *text)
{
	const size_t bytes = sizeof(struct msg_hdr) + sizeof(struct msg_failed);
	struct msg_failed failed = {.error = error < 0 ? error : -EIO};

	if (!buf)
		return (int64_t)bytes;
	if (cap < bytes)
		return -EMSGSIZE;
	snprintf(failed.text, sizeof(failed.text), "%s", text);
	write_hdr(buf, MSG_FAILED, bytes, step);
	memcpy((uint8_t *)buf + sizeof(struct msg_hdr), &failed, sizeof(failed));
	return (int64_t)bytes;
}

/* ---- checks ---- */

/* Are [off, off + n) elements of an array of `count`? In 64 bits, so that nothing wraps. */
static bool within(uint64_t off, uint64_t n, uint64_t count)
{
	return off + n <= count;
}

static int check_seq(const struct msg_step_view *v, uint32_t i, struct errbuf *err)
{
	const struct msg_seq *q = &v->seqs[i];
	uint64_t pages = 0;
	int c;

	for (c = 0; c < PAGE__COUNT; c++)
		pages += q->page_n[c];
	if (q->flags & ~(uint32_t)SEQ__ALL)
		return bad(err, "sequence %u has unknown flags %#x", i, q->flags);
	if (!q->n)
		return bad(err, "sequence %u has no tokens", i);
	if (q->flags & SEQ_PREV && q->n != 1)
		return bad(err, "sequence %u takes its last sample but has %u tokens", i, q->n);
	if (q->pos > INT64_MAX - (uint64_t)UINT32_MAX)
		return bad(err, "sequence %u is at position %llu", i, (unsigned long long)q->pos);
	if (q->flags & (SEQ_SAMPLE | SEQ_PROMPT_LOGPROBS) && q->sample >= v->step->nsample)
		return bad(err, "sequence %u samples by %u of %u", i, q->sample, v->step->nsample);
	if (!within(q->token_off, q->n, v->step->ntoken))
		return bad(err, "sequence %u has tokens %u+%u of %u", i, q->token_off, q->n,
			v->step->ntoken);
	if (!within(q->page_off, pages, v->step->npage))
		return bad(err, "sequence %u has pages %u+%llu of %u", i, q->page_off,
			(unsigned long long)pages, v->step->npage);
	return 0;
}

static int check_sample(const struct msg_step_view *v, uint32_t i, struct errbuf *err)
{
	const struct msg_sample *s = &v->samples[i];

	if (!within(s->bias_off, s->bias_n, v->step->nbias))
		return bad(err, "sample %u has biases %u+%u of %u", i, s->bias_off, s->bias_n,
			v->step->nbias);
	if (!within(s->banned_off, s->banned_n, v->step->ntoken))
		return bad(err, "sample %u bans tokens %u+%u of %u", i, s->banned_off, s->banned_n,
			v->step->ntoken);
	if (s->logprobs > MSG_LOGPROBS_MAX || s->prompt_logprobs > MSG_LOGPROBS_MAX)
		return bad(err, "sample %u wants %u and %u alternatives of at most %d", i,
			s->logprobs, s->prompt_logprobs, MSG_LOGPROBS_MAX);
	return 0;
}

int msg_step_parse(
	const void *buf, size_t bytes, struct msg_step_view *ret_view, struct errbuf *err)
{
	struct msg_step_view v;
	struct msg_step counts;
	int r = check_type(buf, bytes, MSG_STEP, err);
	uint32_t i;

	if (r < 0)
		return r;
	if (bytes < sizeof(struct msg_hdr) + sizeof(counts))
		return bad(err, "%zu bytes are no step", bytes);
	memcpy(&counts, (const uint8_t *)buf + sizeof(struct msg_hdr), sizeof(counts));
	if (counts.flags)
		return bad(err, "the step has unknown flags %#x", counts.flags);
	if (place_step(NULL, &counts, &v) != bytes)
		return bad(err, "the step's counts need %llu bytes, it has %zu",
			(unsigned long long)place_step(NULL, &counts, &v), bytes);
	place_step((void *)(uintptr_t)buf, &counts, &v);
	for (i = 0; i < counts.nsample; i++) {
		r = check_sample(&v, i, err);
		if (r < 0)
			return r;
	}
	for (i = 0; i < counts.nseq; i++) {
		r = check_seq(&v, i, err);
		if (r < 0)
			return r;
	}
	*ret_view = v;
	return 0;
}

static int check_token(const struct msg_result_view *v, uint32_t i, struct errbuf *err)
{
	const struct msg_token *t = &v->tokens[i];

	if (t->flags & ~(uint32_t)(MSG_TOKEN_PROMPT | MSG_TOKEN_NAN))
		return bad(err, "token %u has unknown flags %#x", i, t->flags);
	if (t->alt_n > MSG_LOGPROBS_MAX || !within(t->alt_off, t->alt_n, v->result->nalt))
		return bad(err, "token %u has alternatives %u+%u of %u", i, t->alt_off, t->alt_n,
			v->result->nalt);
	return 0;
}

int msg_result_parse(
	const void *buf, size_t bytes, struct msg_result_view *ret_view, struct errbuf *err)
{
	struct msg_result_view v;
	struct msg_result counts;
	int r = check_type(buf, bytes, MSG_RESULT, err);
	uint32_t i;

	if (r < 0)
		return r;
	if (bytes < sizeof(struct msg_hdr) + sizeof(counts))
		return bad(err, "%zu bytes are no result", bytes);
	memcpy(&counts, (const uint8_t *)buf + sizeof(struct msg_hdr), sizeof(counts));
	if (place_result(NULL, &counts, &v) != bytes)
		return bad(err, "the result's counts need %llu bytes, it has %zu",
			(unsigned long long)place_result(NULL, &counts, &v), bytes);
	place_result((void *)(uintptr_t)buf, &counts, &v);
	for (i = 0; i < counts.ntoken; i++) {
		r = check_token(&v, i, err);
		if (r < 0)
			return r;
	}
	*ret_view = v;
	return 0;
}

int msg_failed_parse(
	const void *buf, size_t bytes, struct msg_failed *ret_failed, struct errbuf *err)
{
	struct msg_failed failed;
	int r = check_type(buf, bytes, MSG_FAILED, err);
	size_t i;

	if (r < 0)
		return r;
	if (bytes != sizeof(struct msg_hdr) + sizeof(failed))
		return bad(err, "%zu bytes are no failure", bytes);
	memcpy(&failed, (const uint8_t *)buf + sizeof(struct msg_hdr), sizeof(failed));
	if (failed.error >= 0)
		return bad(err, "a failure with error %d", failed.error);
	if (!memchr(failed.text, '\0', sizeof(failed.text)))
		return bad(err, "a failure whose text does not end");
	for (i = 0; failed.text[i]; i++)
		if ((unsigned char)failed.text[i] < 0x20 || failed.text[i] == 0x7f)
			failed.text[i] = ' ';
	*ret_failed = failed;
	return 0;
}
