#include "config.h"

#include "shm/chan.h"

#include <string.h>

/* ---- the coordinator ---- */

int chan_coord_init(struct chan_coord *c, struct seg_group *group)
{
	const struct ring_tail *tails[SEG_WORKERS_MAX] = {NULL};
	uint32_t i, n = group->geometry.workers;
	int r;

	memset(c, 0, sizeof(*c));
	c->group = group;
	for (i = 0; i < n; i++) {
		tails[i] = group->workers[i].step_tail;
		c->armed[i] = &group->workers[i].worker_ctl->armed;
	}
	r = ring_writer_init(&c->step, &group->coord.ring, group->coord.step_head, tails, n);
	for (i = 0; r == 0 && i < n; i++)
		r = ring_reader_init(&c->replies[i], &group->workers[i].ring,
			group->workers[i].reply_head, &group->coord.reply_tails[i]);
	return r;
}

int chan_step_reserve(struct chan_coord *c, size_t bytes, void **ret_payload)
{
	return ring_reserve(&c->step, bytes, ret_payload);
}

void chan_step_commit(struct chan_coord *c, size_t bytes)
{
	ring_commit(&c->step, bytes);
	bell_ring_word(&c->group->coord.ctl->word, c->armed, c->group->geometry.workers, BELL_DATA);
	ring_warm(&c->step);
}

int chan_reply_pop(struct chan_coord *c, uint32_t rank, void *buf, size_t cap, size_t *ret_bytes)
{
	int r = ring_pop(&c->replies[rank], buf, cap, ret_bytes);

	/* one bell for all that was taken, and not between a reply and what is done about it */
	if (r != 0 && c->owes_bell[rank])
		bell_ring_word(&c->group->coord.ctl->word, &c->armed[rank], 1, BELL_SPACE);
	c->owes_bell[rank] = r == 0;
	return r;
}

bool chan_sleep(struct chan_coord *c, size_t space_bytes)
{
	struct bell_armed *mine = &c->group->coord.ctl->armed;
	bool something = false;
	uint32_t i;

	bell_arm(mine, space_bytes ? BELL_DATA | BELL_SPACE : BELL_DATA);
	for (i = 0; i < c->group->geometry.workers && !something; i++)
		something = ring_readable(&c->replies[i]);
	if (!something && space_bytes)
		something = ring_writable(&c->step, space_bytes);
	if (something)
		bell_disarm(mine);
	return !something;
}

void chan_wake(struct chan_coord *c)
{
	bell_disarm(&c->group->coord.ctl->armed);
	bell_drain_fd(c->group->bell_fd);
}

/* ---- a worker ---- */

static struct seg *own(struct chan_worker *c)
{
	return &c->group->workers[c->group->rank];
}

/* Failing to write to the eventfd means that the coordinator is gone; the next wait says so. */
static void ring_coordinator(struct seg_group *group, uint32_t news)
{
	int r = bell_ring_fd(&group->coord.ctl->armed, news, group->bell_fd);

	(void)r;
}

int chan_worker_init(
	struct chan_worker *c, struct seg_group *group, uint64_t spin_ns, uint64_t check_ns)
{
	const struct ring_tail *tail;
	struct seg *mine;
	int r;

	if (group->rank < 0)
		return -EINVAL;
	memset(c, 0, sizeof(*c));
	c->group = group;
	c->how = (struct bell_how){.spin_ns = spin_ns,
		.check_ns = check_ns,
		.alive = seg_group_alive,
		.alive_user = group};
	mine = own(c);
	tail = &group->coord.reply_tails[group->rank];
	r = ring_reader_init(&c->step, &group->coord.ring, group->coord.step_head, mine->step_tail);
	if (r < 0)
		return r;
	return ring_writer_init(&c->reply, &mine->ring, mine->reply_head, &tail, 1);
}

static bool step_ready(void *reader)
{
	return ring_readable(reader);
}

int chan_step_next(
	struct chan_worker *c, mono_ns_t deadline, const void **ret_payload, size_t *ret_bytes)
{
	struct bell_how how = c->how;
	int r;

	how.deadline = deadline;
	for (;;) {
		r = ring_peek(&c->step, ret_payload, ret_bytes);
		if (r != -EAGAIN)
			return r;
		r = bell_wait(&c->group->coord.ctl->word, &own(c)->worker_ctl->armed, BELL_DATA,
			step_ready, &c->step, &how);
		if (r < 0)
			return r;
	}
}

void chan_step_done(struct chan_worker *c)
{
	ring_release(&c->step);
	ring_coordinator(c->group, BELL_SPACE);
}

struct room {
	const struct ring_writer *writer;
	size_t bytes;
};

static bool room_ready(void *user)
{
	const struct room *room = user;

	return ring_writable(room->writer, room->bytes);
}

int chan_reply_reserve(struct chan_worker *c, size_t bytes, mono_ns_t deadline, void **ret_payload)
{
	struct room room = {&c->reply, bytes};
	struct bell_how how = c->how;
	int r;

	how.deadline = deadline;
	for (;;) {
		r = ring_reserve(&c->reply, bytes, ret_payload);
		if (r != -EAGAIN)
			return r;
		r = bell_wait(&c->group->coord.ctl->word, &own(c)->worker_ctl->armed, BELL_SPACE,
			room_ready, &room, &how);
		if (r < 0)
			return r;
	}
}

void chan_reply_commit(struct chan_worker *c, size_t bytes)
{
	ring_commit(&c->reply, bytes);
	ring_coordinator(c->group, BELL_DATA);
	ring_warm(&c->reply);
}

void chan_notify(struct seg_group *group)
{
	ring_coordinator(group, BELL_DATA);
}
