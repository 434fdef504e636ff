/* Readiness, progress deadlines, and who is to blame. */
#include "config.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/sup_impl.h"

#define LOG_TAG "sup"
#include "shm/log.h"

#define WATCH_MIN_NS (10 * NS_PER_MS)
#define WATCH_MAX_NS NS_PER_S

static const struct worker_slot *slot_of(const struct sup *s, uint32_t rank)
{
	return s->group->workers[rank].slot;
}

/* ---- states ---- */

/* A worker that has ended but is not reaped yet: its exit event is on its way and says more. */
static bool someone_ended(const struct sup *s)
{
	uint32_t rank;

	for (rank = 0; rank < s->plan->workers; rank++) {
		siginfo_t info = {0};

		if (s->workers[rank].alive &&
			waitid(P_PID, (id_t)s->workers[rank].child.pid, &info,
				WEXITED | WNOHANG | WNOWAIT) == 0 &&
			info.si_pid != 0)
			return true;
	}
	return false;
}

bool sup_first_failed(const struct sup *s, char *text, size_t cap)
{
	struct worker_error error = {.text = "it did not say why"};
	uint64_t first = UINT64_MAX;
	uint32_t rank, culprit = 0;

	for (rank = 0; rank < s->plan->workers; rank++) {
		struct slot_view v;

		if (slot_read(slot_of(s, rank), &v) == 0 && v.state == WORKER_FAILED &&
			v.state_ns < first) {
			first = v.state_ns;
			culprit = rank;
		}
	}
	if (first == UINT64_MAX)
		return false;
	(void)!slot_read_error(slot_of(s, culprit), &error);
	snprintf(text, cap, "worker %u failed: %.400s", culprit, error.text);
	return true;
}

static void lose_failed(struct sup *s)
{
	char why[sizeof(s->why)];

	if (!someone_ended(s) && sup_first_failed(s, why, sizeof(why)))
		sup_down(s, why);
}

void sup_look(struct sup *s)
{
	uint32_t rank, ready = 0;
	char why[128];

	if (s->state != SUP_STARTING && s->state != SUP_READY)
		return;
	for (rank = 0; rank < s->plan->workers; rank++) {
		struct slot_view view;

		if (slot_read(slot_of(s, rank), &view) < 0 ||
			(view.pid && view.generation != s->generation)) {
			snprintf(why, sizeof(why), "worker %u wrote nonsense into its slot", rank);
			sup_down(s, why);
			return;
		}
		if (view.state == WORKER_FAILED) {
			lose_failed(s);
			return;
		}
		ready += view.state == WORKER_READY;
	}
	if (s->state == SUP_STARTING && ready == s->plan->workers)
		sup_all_ready(s);
}

/* ---- progress ---- */

/* Stopped by a signal or a debugger? By /proc, where the state follows the name's last ')'. */
static bool is_stopped(pid_t pid)
{
	char path[48], buf[512], *at;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	buf[n > 0 ? n : 0] = '\0';
	at = strrchr(buf, ')');
	return at && at[1] == ' ' && (at[2] == 'T' || at[2] == 't');
}

/* True when the worker has shown no sign of life for too long. */
static bool is_silent(struct sup *s, uint32_t rank, bool working, mono_ns_t now)
{
	struct sup_worker *w = &s->workers[rank];
	struct slot_view view;

	if (slot_read(slot_of(s, rank), &view) < 0)
		return false; /* sup_look() will say so */
	if (view.progress != w->progress || (!working && !is_stopped(w->child.pid))) {
		w->progress = view.progress;
		w->seen_ns = now;
	}
	return now - w->seen_ns > s->progress_timeout_ns;
}

/* With its pid for the log, without for who asks over HTTP. */
static void describe(
	const struct sup *s, uint32_t rank, mono_ns_t now, bool with_pid, char *out, size_t cap)
{
	const struct sup_worker *w = &s->workers[rank];
	struct slot_view v;
	char layer[32] = "", who[48] = "";
	bool stopped = is_stopped(w->child.pid);

	if (slot_read(slot_of(s, rank), &v) < 0)
		memset(&v, 0, sizeof(v));
	if (v.stage == STAGE_LAYER)
		snprintf(layer, sizeof(layer), " %u", v.layer);
	if (with_pid)
		snprintf(who, sizeof(who), " (pid %d%s)", (int)w->child.pid,
			stopped ? ", stopped" : "");
	else if (stopped)
		snprintf(who, sizeof(who), " (stopped)");
	snprintf(out, cap, "worker %u%s made no progress for %.1f s at step %llu, %s%s", rank, who,
		(double)(now - w->seen_ns) / 1e9, (unsigned long long)v.step,
		slot_stage_name(v.stage), layer);
}

/* A step can also be too long for the machine: which keys say how long it may take, and how long it
 * may be. */
static void warn_silent(const struct sup *s, uint32_t rank, mono_ns_t now)
{
	char why[256], step[64] = "";

	describe(s, rank, now, true, why, sizeof(why));
	if (s->state == SUP_READY)
		snprintf(
			step, sizeof(step), ", schedule.step_tokens %u", s->caps[rank].step_tokens);
	log_warn("%s (fabric.progress_timeout %.3g s%s)", why, (double)s->progress_timeout_ns / 1e9,
		step);
}

/*
 * Those who wait for a silent one in a collective are silent too, and may be so a moment earlier.
 * To blame is one that is stopped, else the silent one whose last sign of life is the oldest.
 */
static uint32_t whom_to_blame(const struct sup *s, const bool *silent)
{
	uint32_t rank, worst = 0;
	uint64_t oldest = UINT64_MAX;

	for (rank = 0; rank < s->plan->workers; rank++) {
		bool stopped = is_stopped(s->workers[rank].child.pid);
		struct slot_view v;
		uint64_t age;

		if (!(silent[rank] || stopped) || slot_read(slot_of(s, rank), &v) < 0)
			continue;
		age = stopped ? 0 : v.progress_ns;
		if (age < oldest) {
			oldest = age;
			worst = rank;
		}
	}
	return worst;
}

mono_ns_t sup_watch(struct sup *s, mono_ns_t now)
{
	mono_ns_t period = MIN(MAX(s->progress_timeout_ns / 8, WATCH_MIN_NS), WATCH_MAX_NS);
	bool working = s->state == SUP_STARTING || s->ops.has_work(s->ops.user);
	bool silent[SEG_WORKERS_MAX] = {false};
	uint32_t rank, n = 0;
	char why[256];

	for (rank = 0; rank < s->plan->workers; rank++) {
		silent[rank] = is_silent(s, rank, working, now);
		n += silent[rank];
	}
	if (n > 0) {
		for (rank = 0; rank < s->plan->workers; rank++)
			if (silent[rank])
				warn_silent(s, rank, now);
		describe(s, whom_to_blame(s, silent), now, false, why, sizeof(why));
		sup_down(s, why);
	}
	return now + (s->state == SUP_STARTING ? MIN(period, 100 * NS_PER_MS) : period);
}

/* ---- refusals ---- */

/* The clearer the worker's own words, the better. */
static int refusal_weight(int code)
{
	switch (code) {
	case EXIT_CONFIG_ERR:
	case EXIT_NO_INPUT:
	case EXIT_DATA_ERR:
		return 3;
	case 0:
		return 0;
	default:
		return code >= EXIT_USAGE_ERR && code <= EXIT_CONFIG_ERR ? 2 : 1;
	}
}

int sup_refusal(const struct sup *s, char *text, size_t cap)
{
	uint32_t rank;
	int best = 0;

	if (s->refuse_code) {
		snprintf(text, cap, "%s", s->why);
		return s->refuse_code;
	}
	for (rank = 0; rank < s->plan->workers; rank++) {
		const struct sup_worker *w = &s->workers[rank];
		struct worker_error error;
		int code = 0;

		if (w->ended_by_itself && WIFEXITED(w->status))
			code = WEXITSTATUS(w->status) ? WEXITSTATUS(w->status) : EXIT_SOFTWARE_ERR;
		if (slot_read_error(slot_of(s, rank), &error) < 0)
			snprintf(error.text, sizeof(error.text),
				"worker %u ended with exit code %d before it was ready", rank,
				code);
		else if (error.exit_code)
			code = error.exit_code;
		if (code == 0 || code == EXIT_UNAVAILABLE_ERR ||
			(best && refusal_weight(code) <= refusal_weight(best)))
			continue;
		best = code;
		snprintf(text, cap, "%s", error.text);
	}
	if (best && refusal_weight(best) < 2)
		best = EXIT_SOFTWARE_ERR;
	return best;
}
