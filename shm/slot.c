#include "config.h"

#include "shm/slot.h"

#include <string.h>
#include <unistd.h>

#define LIMIT_TOKENS       (1ull << 40) /* far above any context; keeps products in 64 bits */

#define set(field, value)  atomic_store_explicit(&(field), (value), memory_order_relaxed)
#define get(field)         atomic_load_explicit(&(field), memory_order_relaxed)

#define X(name, text, doc) text,
static const char *const state_names[] = {WORKER_STATES(X)};
#undef X
#define X(name, text) text,
static const char *const stage_names[] = {WORKER_STAGES(X)};
#undef X

const char *slot_state_name(enum worker_state state)
{
	return (unsigned)state < WORKER__STATES ? state_names[state] : "?";
}

const char *slot_stage_name(enum worker_stage stage)
{
	return (unsigned)stage < STAGE__COUNT ? stage_names[stage] : "?";
}

/* ---- the worker's side ---- */

void slot_begin(struct worker_slot *slot, uint64_t generation)
{
	set(slot->generation, generation);
	set(slot->progress_ns, mono_now());
	set(slot->state_ns, mono_now());
	atomic_store_explicit(&slot->pid, (int32_t)getpid(), memory_order_release);
}

void slot_set_state(struct worker_slot *slot, enum worker_state state)
{
	set(slot->state_ns, mono_now());
	atomic_store_explicit(&slot->state, state, memory_order_release);
}

void slot_set_ready(struct worker_slot *slot, const struct worker_capacity *capacity)
{
	slot->capacity = *capacity;
	slot_set_state(slot, WORKER_READY);
}

void slot_set_failed(struct worker_slot *slot, int error, const struct errbuf *err)
{
	slot->error.error = error;
	slot->error.exit_code = err ? err->exit_code : 0;
	snprintf(slot->error.text, sizeof(slot->error.text), "%s", err ? err->text : "");
	slot_set_state(slot, WORKER_FAILED);
}

static void bump(struct worker_slot *slot)
{
	set(slot->progress_ns, mono_now());
	set(slot->progress, get(slot->progress) + 1);
}

void slot_beat(struct worker_slot *slot, uint64_t step, enum worker_stage stage, uint32_t layer)
{
	set(slot->step, step);
	set(slot->stage, stage);
	set(slot->layer, layer);
	bump(slot);
}

void slot_load(struct worker_slot *slot, uint64_t done_bytes, uint64_t total_bytes)
{
	set(slot->stage, STAGE_LOAD);
	set(slot->load_total_bytes, total_bytes);
	set(slot->load_done_bytes, done_bytes);
	bump(slot);
}

/* ---- the readers' side ---- */

int slot_read(const struct worker_slot *slot, struct slot_view *ret_view)
{
	uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
	uint32_t stage = get(slot->stage);

	if (state >= WORKER__STATES || stage >= STAGE__COUNT)
		return -EBADMSG;
	*ret_view = (struct slot_view){
		.state = (enum worker_state)state,
		.pid = get(slot->pid),
		.generation = get(slot->generation),
		.state_ns = get(slot->state_ns),
		.progress = get(slot->progress),
		.progress_ns = get(slot->progress_ns),
		.step = get(slot->step),
		.stage = (enum worker_stage)stage,
		.layer = get(slot->layer),
		.load_done_bytes = get(slot->load_done_bytes),
		.load_total_bytes = get(slot->load_total_bytes),
	};
	return 0;
}

enum worker_state slot_state(const struct worker_slot *slot)
{
	uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);

	return state < WORKER__STATES ? (enum worker_state)state : WORKER_FAILED;
}

static int bad(struct errbuf *err, const char *what, uint64_t value, const char *right)
{
	return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
		"a worker's capacity says %s = %llu; it must be %s", what,
		(unsigned long long)value, right);
}

static int check_classes(const struct page_class_info *classes, struct errbuf *err)
{
	size_t i;

	for (i = 0; i < PAGE__COUNT; i++) {
		const struct page_class_info *c = &classes[i];

		if (!c->tokens_per_page)
			continue;
		if (c->tokens_per_page > 1u << 20)
			return bad(err, "tokens_per_page", c->tokens_per_page, "at most 2^20");
		if (!c->count)
			return bad(err, "pages of a class in use", 0, "at least 1");
		if (c->bytes_per_page > 1ull << 31)
			return bad(err, "bytes_per_page", c->bytes_per_page, "at most 2^31");
	}
	if (!classes[PAGE_RAW].tokens_per_page)
		return bad(err, "tokens_per_page of raw pages", 0, "at least 1");
	return 0;
}

int slot_read_capacity(
	const struct worker_slot *slot, struct worker_capacity *ret_capacity, struct errbuf *err)
{
	struct worker_capacity c;
	int r;

	if (slot_state(slot) != WORKER_READY)
		return -EAGAIN;
	c = slot->capacity;
	if (!c.max_context || c.max_context > LIMIT_TOKENS)
		return bad(err, "max_context", c.max_context, "1 to 2^40");
	if (!c.max_sequences || c.max_sequences > 1u << 20)
		return bad(err, "max_sequences", c.max_sequences, "1 to 2^20");
	if (!c.vocab || c.vocab > 1u << 28)
		return bad(err, "vocab", c.vocab, "1 to 2^28");
	if (!c.step_tokens || c.step_tokens > 1u << 24)
		return bad(err, "step_tokens", c.step_tokens, "1 to 2^24");
	r = check_classes(c.classes, err);
	if (r < 0)
		return r;
	c.dims[sizeof(c.dims) - 1] = '\0';
	c.numerics[sizeof(c.numerics) - 1] = '\0';
	*ret_capacity = c;
	return 0;
}

/* Ends the text and takes out what would forge log lines or drive a terminal. */
static void make_printable(char *text, size_t cap)
{
	size_t i;

	text[cap - 1] = '\0';
	for (i = 0; text[i]; i++)
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			text[i] = ' ';
}

int slot_read_error(const struct worker_slot *slot, struct worker_error *ret_error)
{
	uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
	struct worker_error e;

	if (state != WORKER_FAILED)
		return -EAGAIN;
	e = slot->error;
	make_printable(e.text, sizeof(e.text));
	if (e.error > 0)
		e.error = -EIO;
	if (e.exit_code < 0 || e.exit_code > 255)
		e.exit_code = 0;
	*ret_error = e;
	return 0;
}
