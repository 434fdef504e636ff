/*
 * A heddle-worker without a model, for tests of everything around it: it attaches, reports a
 * capacity, keeps the protocol, answers each sample by a function of the history (fake_model.h),
 * and misbehaves on request. All ranks meet in each step, as real ones do in their collectives, so
 * that one silent rank holds up all.
 *
 *	FAKE_FAULT=KIND@RANK[.GENERATION]:STEP[,...]   at that step (0: while loading), once:
 *		die stop hang       SIGKILL, SIGSTOP, silence
 *		fail lie garble     MSG_FAILED, a wrong result, a reply that is no message
 *		failed              slot state FAILED with exit code 65
 *		exit65 exit69       exit with that code
 *	FAKE_CHECK=CODE      what --check answers
 *	FAKE_STEP_MS=N       a step takes at least this long
 *	FAKE_SCRIPT=FILE     answer by the file instead: a line for each sequence, of token ids
 *		(see script_token)
 *	FAKE_VOCAB, FAKE_CONTEXT, FAKE_STEP_TOKENS, FAKE_PAGES, FAKE_SLOTS, FAKE_FIRST_TOKEN
 *		the model
 */
#include "config.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/chan.h"
#include "shm/log.h"
#include "tests/proc/fake_model.h"

#define SLOTS_MAX 256

struct fake {
	uint32_t rank, world;
	struct seg_group group;
	struct chan_worker chan;
	struct worker_slot *slot;
	struct worker_stats *stats;
	uint32_t vocab, first_token, round;
	uint64_t hash[SLOTS_MAX], pos[SLOTS_MAX];
	uint32_t sampled[SLOTS_MAX];
	/* of FAKE_SCRIPT: the file, how many of its lines are given away; a slot's line, and how
	 * much of it is said */
	ino_t script;
	uint32_t script_lines, line[SLOTS_MAX], said[SLOTS_MAX];
};

static uint32_t env_number(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text ? (uint32_t)strtoul(text, NULL, 0) : otherwise;
}

/* ---- --check ---- */

static int check(int conf_fd)
{
	static struct conf conf;
	char path[CONF_STR_MAX + 16];
	uint32_t code = env_number("FAKE_CHECK", 0);
	struct stat st;

	if (read(conf_fd, &conf, sizeof(conf)) != (ssize_t)sizeof(conf)) {
		fprintf(stderr, "--conf-fd %d holds no configuration\n", conf_fd);
		return EXIT_SOFTWARE_ERR;
	}
	snprintf(path, sizeof(path), "%s/config.json", conf.model_path);
	if (code) {
		fprintf(stderr, "a line before\nfake refusal with code %u\n", code);
		return (int)code;
	}
	if (stat(path, &st) < 0) {
		fprintf(stderr, "model.path: %s: %s\n", path, strerror(errno));
		return EXIT_NO_INPUT;
	}
	return 0;
}

/* ---- misbehaving ---- */

static void wait_for_ever(void)
{
	for (;;)
		(void)poll(NULL, 0, -1);
}

static const char *fault_at(const struct fake *f, uint64_t step)
{
	static char kind[32];
	const char *at = getenv("FAKE_FAULT");

	for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		unsigned int rank, generation = 1;
		unsigned long long when;
		int n = sscanf(at, "%31[a-z0-9]@%u.%u:%llu", kind, &rank, &generation, &when);

		if (n == 2)
			n = sscanf(at, "%31[a-z0-9]@%u:%llu", kind, &rank, &when) + 1;
		if (n == 4 && rank == f->rank && when == step &&
			generation == f->group.geometry.generation)
			return kind;
	}
	return "";
}

static void misbehave(struct fake *f, const char *kind)
{
	struct errbuf err = {"the fake shard is damaged", EXIT_DATA_ERR};

	if (strcmp(kind, "die") == 0)
		raise(SIGKILL);
	if (strcmp(kind, "stop") == 0)
		raise(SIGSTOP);
	if (strcmp(kind, "hang") == 0)
		wait_for_ever();
	if (strncmp(kind, "exit", 4) == 0)
		exit(atoi(kind + 4));
	if (strcmp(kind, "failed") == 0) {
		slot_set_failed(f->slot, EIO, &err);
		chan_notify(&f->group);
		wait_for_ever();
	}
}

/* ---- a step ---- */

/* All ranks have come here; -EPIPE when one never will. */
static int meet(struct fake *f)
{
	struct bell_how how = {.alive = seg_group_alive, .alive_user = &f->group};
	const struct bell_armed *armed[SEG_WORKERS_MAX];
	struct seg *mine = &f->group.workers[f->rank];
	uint32_t rank;
	int r = 0;

	f->round++;
	for (rank = 0; rank < f->world; rank++)
		armed[rank] = &f->group.workers[rank].worker_ctl->comm_armed;
	(void)bell_post(&mine->flags[0], f->round, armed, f->world);
	for (rank = 0; rank < f->world && r == 0; rank++)
		r = bell_wait_reach(&f->group.workers[rank].flags[0], f->round,
			&mine->worker_ctl->comm_armed, &how);
	return r;
}

static int bad_step(const struct fake *f, uint64_t step, const char *what)
{
	log_write(CONF_LEVEL_ERROR, "fake", "rank %u, step %llu: %s", f->rank,
		(unsigned long long)step, what);
	return -EBADMSG;
}

/* Line n, or the last one; the caller frees. */
static char *script_line(FILE *file, uint32_t n)
{
	char *line = NULL, *next = NULL;
	size_t cap = 0;
	uint32_t i;

	for (i = 0; i <= n && getline(&next, &cap, file) >= 0; i++) {
		free(line);
		line = strdup(next);
	}
	free(next);
	return line;
}

/*
 * The next token of the slot's line; false without a script. Line n is for the n-th sequence since
 * the file was renamed into place, the last line for all after it; behind a line's ids comes 1,
 * the end of an answer.
 */
static bool script_token(struct fake *f, uint32_t slot, uint32_t *ret_token)
{
	const char *path = getenv("FAKE_SCRIPT");
	FILE *file = path ? fopen(path, "re") : NULL;
	char *text, *at;
	struct stat st;
	uint32_t i;

	if (!file)
		return false;
	if (f->said[slot] == 0) {
		if (fstat(fileno(file), &st) == 0 && st.st_ino != f->script) {
			f->script = st.st_ino;
			f->script_lines = 0;
		}
		f->line[slot] = f->script_lines++;
	}
	text = script_line(file, f->line[slot]);
	at = text ? strtok(text, " \n") : NULL;
	for (i = 0; at && i < f->said[slot]; i++)
		at = strtok(NULL, " \n");
	*ret_token = at ? (uint32_t)strtoul(at, NULL, 10) : 1;
	f->said[slot]++;
	free(text);
	fclose(file);
	return true;
}

static int run_seq(struct fake *f, const struct msg_step_view *v, const struct msg_seq *q,
	struct msg_token *tokens, uint32_t *n)
{
	const struct msg_sample *s = &v->samples[q->sample];
	uint32_t i;

	if (q->slot >= SLOTS_MAX)
		return bad_step(f, v->hdr->step, "no such slot");
	if (q->flags & SEQ_FIRST) {
		f->hash[q->slot] = FAKE_HASH0;
		f->pos[q->slot] = 0;
		f->said[q->slot] = 0;
	}
	if (q->pos != f->pos[q->slot])
		return bad_step(f, v->hdr->step, "wrong position");
	for (i = 0; i < q->n; i++) {
		uint32_t token =
			q->flags & SEQ_PREV ? f->sampled[q->slot] : v->tokens[q->token_off + i];

		f->hash[q->slot] = fake_hash(f->hash[q->slot], token);
		if (q->flags & SEQ_PROMPT_LOGPROBS && q->pos + i > 0)
			tokens[(*n)++] = (struct msg_token){.slot = q->slot,
				.token = token,
				.pos = q->pos + i,
				.logprob = -1.0f,
				.rank = 1,
				.flags = MSG_TOKEN_PROMPT};
	}
	f->pos[q->slot] += q->n;
	if (!(q->flags & SEQ_SAMPLE))
		return 0;
	if (!script_token(f, q->slot, &f->sampled[q->slot]))
		f->sampled[q->slot] = fake_token(f->hash[q->slot], f->first_token, f->vocab,
			v->tokens + s->banned_off, s->banned_n);
	tokens[(*n)++] = (struct msg_token){.slot = q->slot,
		.token = f->sampled[q->slot],
		.pos = f->pos[q->slot],
		.logprob = -0.5f,
		.rank = 1};
	return 0;
}

static int reply(struct fake *f, const struct msg_step_view *v, struct msg_token *tokens,
	uint32_t n, const char *fault)
{
	struct msg_result counts = {.ntoken = n, .run_ns = 1000};
	struct msg_result_view out;
	int64_t bytes = msg_result_layout(NULL, 0, &counts, v->hdr->step, &out);
	void *at;
	int r;

	if (strcmp(fault, "lie") == 0 && n > 0)
		tokens[0].slot += 1;
	bytes = MAX(bytes, 512); /* room for what is said instead, too */
	r = chan_reply_reserve(&f->chan, (size_t)bytes, 0, &at);
	if (r < 0)
		return r;
	if (strcmp(fault, "garble") == 0) {
		memset(at, 0xa5, 64);
		chan_reply_commit(&f->chan, 64);
		return 0;
	}
	if (strcmp(fault, "fail") == 0) {
		bytes = msg_failed_build(at, (size_t)bytes, v->hdr->step, EIO, "as the test asked");
		chan_reply_commit(&f->chan, (size_t)bytes);
		return 0;
	}
	bytes = msg_result_layout(at, (size_t)bytes, &counts, v->hdr->step, &out);
	if (bytes < 0)
		return (int)bytes;
	memcpy((void *)out.tokens, tokens, n * sizeof(*tokens));
	chan_reply_commit(&f->chan, (size_t)bytes);
	return 0;
}

static int run_step(struct fake *f, const struct msg_step_view *v)
{
	const char *fault = fault_at(f, v->hdr->step);
	struct msg_token *tokens = calloc(v->step->ntoken + v->step->nseq, sizeof(*tokens));
	uint32_t i, n = 0;
	int r = 0;

	slot_beat(f->slot, v->hdr->step, STAGE_LAYER, 3);
	misbehave(f, fault);
	(void)poll(NULL, 0, (int)env_number("FAKE_STEP_MS", 0));
	for (i = 0; i < v->step->nseq && r == 0; i++)
		r = run_seq(f, v, &v->seqs[i], tokens, &n);
	if (r == 0 && f->world > 1)
		r = meet(f);
	if (r == 0 && f->rank == 0)
		r = reply(f, v, tokens, n, fault);
	stats_add(f->stats, steps, 1);
	slot_beat(f->slot, v->hdr->step, STAGE_IDLE, 0);
	free(tokens);
	return r;
}

static int serve(struct fake *f)
{
	struct msg_step_view view;
	struct errbuf err;
	const void *msg;
	size_t bytes;
	int r;

	for (;;) {
		r = chan_step_next(&f->chan, 0, &msg, &bytes);
		if (r < 0)
			return r;
		if (msg_hdr_parse(msg, bytes, &err) == MSG_STOP)
			return 0;
		r = msg_step_parse(msg, bytes, &view, &err);
		if (r == 0)
			r = run_step(f, &view);
		else
			bad_step(f, 0, err.text);
		chan_step_done(&f->chan);
		if (r < 0)
			return r;
	}
}

/* ---- begin ---- */

static void say_ready(struct fake *f)
{
	uint32_t pages = env_number("FAKE_PAGES", 4096);
	struct worker_capacity c = {
		.classes = {{64, pages, 1000}, {256, pages, 1000}, {8192, pages, 1000}},
		.max_context = env_number("FAKE_CONTEXT", 65536),
		.max_sequences = MIN(env_number("FAKE_SLOTS", 64), SLOTS_MAX),
		.vocab = f->vocab,
		.step_tokens = env_number("FAKE_STEP_TOKENS", 512),
		.threads = 1,
		.dims = "a fake model",
	};

	slot_set_ready(f->slot, &c);
	chan_notify(&f->group);
}

static int run(struct fake *f)
{
	struct errbuf err;
	int r = seg_group_attach(&f->group, f->rank, &err);

	if (r < 0) {
		fprintf(stderr, "fake worker: %s\n", err.text);
		return EXIT_SOFTWARE_ERR;
	}
	f->world = f->group.geometry.workers;
	f->slot = f->group.workers[f->rank].slot;
	f->stats = f->group.workers[f->rank].stats;
	if (chan_worker_init(&f->chan, &f->group, 0, 0) < 0)
		return EXIT_SOFTWARE_ERR;
	slot_begin(f->slot, f->group.geometry.generation);
	slot_set_state(f->slot, WORKER_LOADING);
	slot_beat(f->slot, 0, STAGE_LOAD, 0);
	misbehave(f, fault_at(f, 0));
	say_ready(f);
	r = serve(f);
	slot_set_state(f->slot, r < 0 ? WORKER_FAILED : WORKER_STOPPED);
	return r < 0 ? EXIT_UNAVAILABLE_ERR : 0;
}

int main(int argc, char **argv)
{
	static struct fake f;
	int i, conf_fd = -1;

	f.vocab = env_number("FAKE_VOCAB", 4096);
	f.first_token = env_number("FAKE_FIRST_TOKEN", 64);
	for (i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--rank") == 0)
			f.rank = (uint32_t)atoi(argv[i + 1]);
		if (strcmp(argv[i], "--conf-fd") == 0)
			conf_fd = atoi(argv[i + 1]);
	}
	return conf_fd >= 0 ? check(conf_fd) : run(&f);
}
