#include "config.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/sup_impl.h"

#define LOG_TAG "sup"
#include "shm/log.h"

static const char *const state_names[] = {"idle", "checking", "starting", "ready", "teardown",
	"backoff", "stopping", "stopped", "failed"};

const char *sup_state_name(enum sup_state state)
{
	return state_names[state];
}

static void set_state(struct sup *s, enum sup_state state, const char *why)
{
	s->state = state;
	s->ops.on_state(s->ops.user, state, why);
}

static void group_gone(struct sup *s);

/* ---- ends of things: the group is gone when nobody lives and the kernel watches nothing ---- */

static bool anything_left(const struct sup *s)
{
	uint32_t rank;

	for (rank = 0; rank < s->plan->workers; rank++)
		if (s->workers[rank].alive || s->workers[rank].polled)
			return true;
	return s->bell_polled || s->checking || s->check_polled;
}

static void check_gone(struct sup *s)
{
	if ((s->state == SUP_TEARDOWN || s->state == SUP_STOPPING) && !anything_left(s))
		group_gone(s);
}

static void kill_group(struct sup *s)
{
	uint32_t rank;

	s->killed = true;
	if (s->group->coord.ctl)
		seg_group_set_lost(s->group);
	for (rank = 0; rank < s->plan->workers; rank++)
		if (s->workers[rank].alive)
			kill(s->workers[rank].child.pid, SIGKILL); /* not reaped: still its pid */
	if (s->bell_polled)
		loop_cancel(s->loop, &s->bell_event);
}

/* ---- workers ---- */

static void worker_ended(struct sup *s, uint32_t rank, struct sup_worker *w)
{
	char how[64], why[sizeof(s->why)];
	struct worker_error error;

	spawn_status_text(w->status, how);
	if (s->state == SUP_STOPPING && WIFEXITED(w->status) && WEXITSTATUS(w->status) == 0) {
		log_debug("worker %u: stopped", rank);
		return;
	}
	if (s->state == SUP_STOPPING || s->state == SUP_TEARDOWN) {
		log_debug("worker %u: ended by %s", rank, how);
		return;
	}
	w->ended_by_itself = true;
	if (slot_read_error(s->group->workers[rank].slot, &error) < 0)
		error.text[0] = '\0';
	/* One that leaves without a word leaves because of another, whose end may come to light
	 * later. */
	if (!(WIFEXITED(w->status) && !error.text[0] && sup_first_failed(s, why, sizeof(why))))
		snprintf(why, sizeof(why), "worker %u ended by %s%s%.250s", rank, how,
			error.text[0] ? ": " : "", error.text);
	log_info("worker %u: pid %d ended by %s", rank, (int)w->child.pid, how);
	sup_down(s, why);
}

static void on_exit_event(struct loop_event *ev, int res, bool more)
{
	struct sup_worker *w = ev->user;
	struct sup *s = w->sup;

	(void)res;
	if (!more && w->alive && spawn_reap(&w->child, &w->status) < 0) {
		kill(w->child.pid, SIGKILL); /* it can no longer be watched */
		waitpid(w->child.pid, &w->status, 0);
		w->alive = false;
		worker_ended(s, (uint32_t)(w - s->workers), w);
	} else if (w->alive && spawn_reap(&w->child, &w->status) == 0) {
		w->alive = false;
		worker_ended(s, (uint32_t)(w - s->workers), w);
		if (more)
			loop_cancel(s->loop, ev);
	}
	if (more)
		return;
	w->polled = false;
	close(w->child.pidfd);
	check_gone(s);
}

static void fd_list(char *out, size_t cap, uint32_t workers)
{
	size_t at = 0;
	uint32_t i;

	for (i = 0; i < workers && at < cap; i++)
		at += (size_t)snprintf(out + at, cap - at, "%s%u", i ? "," : "", SEG_FD_WORKER + i);
}

static int spawn_worker(struct sup *s, uint32_t rank, struct errbuf *err)
{
	struct sup_worker *w = &s->workers[rank];
	char rank_text[16], world[16], coord[16], bell[16], generation[24], fds_text[512];
	char *argv[] = {"heddle-worker", "--rank", rank_text, "--world", world, "--coord-fd", coord,
		"--worker-fds", fds_text, "--bell-fd", bell, "--generation", generation, NULL};
	struct spawn_fd fds[2 + SEG_WORKERS_MAX] = {
		{s->group->coord.fd, SEG_FD_COORD}, {s->group->bell_fd, SEG_FD_BELL}};
	struct spawn_args args = {.path = s->worker_path,
		.argv = argv,
		.fds = fds,
		.fd_n = 2 + s->plan->workers,
		.output_fd = -1,
		.bind = s->conf->fabric_pin ? &s->plan->w[rank] : NULL,
		.bind_memory = s->plan->nodes > 1};
	uint32_t i;
	int r;

	snprintf(rank_text, sizeof(rank_text), "%u", rank);
	snprintf(world, sizeof(world), "%u", s->plan->workers);
	snprintf(coord, sizeof(coord), "%d", SEG_FD_COORD);
	snprintf(bell, sizeof(bell), "%d", SEG_FD_BELL);
	snprintf(generation, sizeof(generation), "%llu", (unsigned long long)s->generation);
	fd_list(fds_text, sizeof(fds_text), s->plan->workers);
	for (i = 0; i < s->plan->workers; i++)
		fds[2 + i] = (struct spawn_fd){s->group->workers[i].fd, (int)(SEG_FD_WORKER + i)};
	*w = (struct sup_worker){.sup = s, .seen_ns = mono_now()};
	r = spawn_child(&args, &w->child, err);
	if (r < 0)
		return r;
	w->alive = true;
	w->exit_event = (struct loop_event){.fn = on_exit_event, .user = w};
	r = loop_poll(s->loop, &w->exit_event, w->child.pidfd, POLLIN);
	w->polled = r == 0;
	log_info("worker %u: pid %d, generation %s, CPUs %s", rank, (int)w->child.pid, generation,
		s->conf->fabric_pin ? s->plan->w[rank].text : "any");
	return r;
}

/* ---- the group ---- */

/* The coordinator's side of the bell until the group is ready; then it is the engine's. */
static void arm_and_look(struct sup *s)
{
	if (s->state != SUP_STARTING)
		return;
	bell_arm(&s->group->coord.ctl->armed, BELL_DATA);
	sup_look(s);
}

static void on_bell_event(struct loop_event *ev, int res, bool more)
{
	struct sup *s = ev->user;

	(void)res;
	if (!more) {
		s->bell_polled = false;
		check_gone(s);
		return;
	}
	if (s->state == SUP_READY) {
		s->ops.on_bell(s->ops.user);
	} else if (s->state == SUP_STARTING) {
		bell_disarm(&s->group->coord.ctl->armed);
		bell_drain_fd(s->group->bell_fd);
		arm_and_look(s);
	}
}

static int open_group(struct sup *s, struct errbuf *err)
{
	struct seg_geometry geometry = {
		.generation = s->generation,
		.workers = s->plan->workers,
		.step_ring_bytes = (uint64_t)s->conf->fabric_ring,
		.reply_ring_bytes = SUP_REPLY_RING_BYTES,
		.comm_bytes = s->plan->workers > 1 ? SUP_COMM_BYTES : 0,
	};
	uint32_t rank;
	int r = seg_group_create(s->group, &geometry, s->conf, err);

	if (r < 0)
		return r;
	s->bell_event = (struct loop_event){.fn = on_bell_event, .user = s};
	r = loop_poll(s->loop, &s->bell_event, s->group->bell_fd, POLLIN);
	if (r < 0)
		return err_set(err, r, EXIT_OS_ERR, "cannot watch the doorbell: %s", strerror(-r));
	s->bell_polled = true;
	for (rank = 0; rank < s->plan->workers && r == 0; rank++)
		r = spawn_worker(s, rank, err);
	return r;
}

static void start_group(struct sup *s)
{
	struct errbuf err;

	s->generation++;
	s->refuse_code = 0;
	s->killed = false;
	memset(s->workers, 0, sizeof(s->workers));
	set_state(s, SUP_STARTING, "");
	if (open_group(s, &err) < 0) {
		s->refuse_code = err.exit_code ? err.exit_code : EXIT_OS_ERR;
		sup_down(s, err.text);
		return;
	}
	sup_touch(
		s); /* starting the last may have taken long, and is not the first one's silence */
	s->watch_due_ns = mono_now();
	loop_timer_set(s->loop, &s->timer, s->watch_due_ns);
	arm_and_look(s);
}

void sup_all_ready(struct sup *s)
{
	struct errbuf err;
	uint32_t rank;
	int r = 0;

	for (rank = 0; rank < s->plan->workers && r == 0; rank++)
		r = slot_read_capacity(s->group->workers[rank].slot, &s->caps[rank], &err);
	if (r == 0)
		r = s->ops.on_ready(s->ops.user, s->group, s->caps, &err);
	if (r < 0) {
		s->refuse_code = err.exit_code ? err.exit_code : EXIT_SOFTWARE_ERR;
		sup_down(s, err.text);
		return;
	}
	s->ever_ready = true;
	s->ready_ns = mono_now();
	sup_touch(s);
	log_notice("all %u workers are ready (generation %llu)", s->plan->workers,
		(unsigned long long)s->generation);
	set_state(s, SUP_READY, "");
}

void sup_down(struct sup *s, const char *why)
{
	bool was_ready = s->state == SUP_READY;

	if (s->state != SUP_STARTING && s->state != SUP_READY)
		return;
	snprintf(s->why, sizeof(s->why), "%s", why);
	if (s->draining)
		log_warn("%s; shutting down", s->why); /* else what follows says it */
	loop_timer_stop(s->loop, &s->timer);
	s->state = SUP_TEARDOWN; /* first: what follows must not come back here */
	if (was_ready)
		s->ops.on_lost(s->ops.user, s->why);
	kill_group(s);
	set_state(s, SUP_TEARDOWN, s->why);
	check_gone(s);
}

static void refuse(struct sup *s, int code, const char *text)
{
	set_state(s, SUP_FAILED, text);
	s->ops.on_refused(s->ops.user, code, text);
}

static void back_off(struct sup *s)
{
	uint64_t delay = SUP_BACKOFF_MIN_NS << MIN(s->failures - 1, 10u);

	delay = MIN(delay, SUP_BACKOFF_MAX_NS);
	s->restarts++;
	log_warn("%s; restarting the group in %llu ms (%u of %lld)", s->why,
		(unsigned long long)(delay / NS_PER_MS), s->failures, (long long)s->max_restarts);
	set_state(s, SUP_BACKOFF, s->why);
	loop_timer_set(s->loop, &s->timer, mono_now() + delay);
}

bool sup_restarts(const struct sup *s)
{
	return !s->draining && !s->stop_wanted && s->failures < s->max_restarts;
}

static void give_up(struct sup *s)
{
	char text[600], why[sizeof(s->why)];

	snprintf(why, sizeof(why), "%.400s; giving up after %lld restarts (fabric.max_restarts)",
		s->why, (long long)s->max_restarts);
	memcpy(s->why, why, sizeof(why));
	if (s->ever_ready) {
		log_err("%s", s->why);
		set_state(s, SUP_FAILED, s->why);
		return;
	}
	snprintf(text, sizeof(text), "the workers never became ready: %s", s->why);
	refuse(s, EXIT_UNAVAILABLE_ERR, text);
}

/* Nobody lives and nothing is watched: close the segments and decide what follows. */
static void group_gone(struct sup *s)
{
	char text[600];
	int code = s->ever_ready || s->stop_wanted ? 0 : sup_refusal(s, text, sizeof(text));

	seg_group_close(s->group);
	loop_timer_stop(s->loop, &s->timer);
	if (s->stop_wanted) {
		set_state(s, SUP_STOPPED, "");
		s->ops.on_stopped(s->ops.user);
		return;
	}
	if (code) {
		refuse(s, code, text);
		return;
	}
	if (sup_restarts(s)) {
		s->failures++;
		back_off(s);
		return;
	}
	if (s->draining) {
		set_state(s, SUP_FAILED, s->why);
		return;
	}
	give_up(s);
}

/* ---- the check before everything ---- */

static void check_ended(struct sup *s, int status)
{
	struct errbuf err;
	int r;

	s->checking = false;
	loop_timer_stop(s->loop, &s->timer);
	r = preflight_finish(&s->check, status, &err);
	if (s->state != SUP_CHECKING)
		check_gone(s);
	else if (r < 0)
		refuse(s, err.exit_code, err.text);
	else
		start_group(s);
}

static void on_check_event(struct loop_event *ev, int res, bool more)
{
	struct sup *s = ev->user;
	int status;

	(void)res;
	if (more) {
		/* the file must not be closed while it is polled: cancel first, then look */
		loop_cancel(s->loop, ev);
		return;
	}
	s->check_polled = false;
	if (spawn_reap(&s->check.child, &status) < 0) {
		kill(s->check.child.pid, SIGKILL);
		waitpid(s->check.child.pid, &status, 0);
	}
	check_ended(s, status);
}

int sup_start(struct sup *s, struct errbuf *err)
{
	int r = preflight_start(&s->check, s->worker_path, s->conf, err);

	if (r < 0)
		return r;
	s->checking = true;
	s->check_event = (struct loop_event){.fn = on_check_event, .user = s};
	r = loop_poll(s->loop, &s->check_event, s->check.child.pidfd, POLLIN);
	if (r < 0) {
		preflight_abort(&s->check);
		s->checking = false;
		return err_set(err, r, EXIT_OS_ERR, "cannot watch a process: %s", strerror(-r));
	}
	s->check_polled = true;
	set_state(s, SUP_CHECKING, "");
	loop_timer_set(s->loop, &s->timer, mono_now() + PREFLIGHT_TIMEOUT_NS);
	return 0;
}

/* ---- time ---- */

static void watch(struct sup *s)
{
	if (mono_now() > s->watch_due_ns + s->progress_timeout_ns / 2)
		sup_touch(s); /* it was us who did not run: that says nothing about the workers */
	s->watch_due_ns = sup_watch(s, mono_now()); /* not before the touch */
	if (s->state == SUP_STARTING || s->state == SUP_READY)
		loop_timer_set(s->loop, &s->timer, s->watch_due_ns);
}

static void on_timer(struct loop_timer *t, void *user)
{
	struct sup *s = user;

	(void)t;
	switch (s->state) {
	case SUP_CHECKING:
		log_err("heddle-worker --check did not end within %llu s",
			PREFLIGHT_TIMEOUT_NS / NS_PER_S);
		kill(s->check.child.pid, SIGKILL);
		break;
	case SUP_STARTING:
	case SUP_READY:
		arm_and_look(s);
		if (s->state != SUP_STARTING && s->state != SUP_READY)
			break;
		watch(s);
		break;
	case SUP_BACKOFF:
		start_group(s);
		break;
	case SUP_STOPPING:
		if (!anything_left(s)) {
			group_gone(s);
			break;
		}
		if (s->killed)
			break;
		log_warn("workers did not stop within %llu s: killing them",
			SUP_STOP_GRACE_NS / NS_PER_S);
		kill_group(s);
		break;
	default:
		break;
	}
}

void sup_touch(struct sup *s)
{
	mono_ns_t now = mono_now();
	uint32_t rank;

	for (rank = 0; rank < s->plan->workers; rank++)
		s->workers[rank].seen_ns = now;
}

void sup_drain(struct sup *s)
{
	s->draining = true;
}

void sup_served(struct sup *s)
{
	s->failures = 0;
}

void sup_set_limits(struct sup *s, mono_ns_t progress_timeout_ns, int64_t max_restarts)
{
	s->progress_timeout_ns = progress_timeout_ns;
	s->max_restarts = max_restarts;
}

void sup_lose(struct sup *s, const char *why)
{
	sup_down(s, why);
}

/* ---- begin and end ---- */

int sup_init(struct sup *s, struct loop *loop, const struct conf *conf,
	const struct place_plan *plan, const char *worker_path, const struct sup_ops *ops)
{
	*s = (struct sup){.loop = loop,
		.ops = *ops,
		.conf = conf,
		.plan = plan,
		.worker_path = worker_path,
		.timer = {.fn = on_timer}};
	s->timer.user = s;
	sup_set_limits(s, (mono_ns_t)conf->fabric_progress_timeout, conf->fabric_max_restarts);
	s->group = calloc(1, sizeof(*s->group));
	s->caps = calloc(plan->workers, sizeof(*s->caps));
	if (s->group && s->caps)
		return 0;
	free(s->group);
	free(s->caps);
	return -ENOMEM;
}

void sup_stop(struct sup *s)
{
	bool orderly = s->state == SUP_READY;

	s->stop_wanted = true;
	if (s->state == SUP_TEARDOWN || s->state == SUP_STOPPING || s->state == SUP_STOPPED)
		return;
	loop_timer_stop(s->loop, &s->timer);
	if (s->checking)
		kill(s->check.child.pid, SIGKILL);
	set_state(s, SUP_STOPPING, "");
	if (orderly) {
		loop_timer_set(s->loop, &s->timer, mono_now() + SUP_STOP_GRACE_NS);
		if (s->bell_polled)
			loop_cancel(s->loop, &s->bell_event);
	} else {
		kill_group(s);
		loop_timer_set(s->loop, &s->timer, mono_now()); /* ends it if nobody is left */
	}
}

void sup_fini(struct sup *s)
{
	uint32_t rank;

	if (s->checking)
		preflight_abort(&s->check);
	for (rank = 0; s->plan && rank < s->plan->workers; rank++) {
		struct sup_worker *w = &s->workers[rank];

		if (w->alive) {
			kill(w->child.pid, SIGKILL);
			waitpid(w->child.pid, NULL, 0);
		}
		if (w->alive || w->polled)
			close(w->child.pidfd);
	}
	if (s->group)
		seg_group_close(s->group);
	free(s->group);
	free(s->caps);
	*s = (struct sup){0};
}
