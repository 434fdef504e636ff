/*
 * Loading a checkpoint of 2 GB beside reading the same files into memory, from the device and from
 * the page cache.
 *
 *	bench_load [DIR]		makes the checkpoint in the directory DIR and leaves it
 *					there, or takes the one that lies there; without, in
 *					$TMPDIR or here, and removes it
 *	bench_load DIR device|cache	only this half: both take minutes where the host of a
 *					virtual machine gives memory slowly
 *	bench_load --make DIR		makes it, and DIR too, and measures nothing
 *
 * One that is stopped while it makes the checkpoint removes what there is of it.
 *
 * Every run is a process of its own with fresh memory, which both sides must have from the kernel;
 * they take turns, and the fastest run of each counts: what a host does to its machines only ever
 * adds to one, up to four times its length, and to either side. Reading: the best of read() in
 * blocks of 4 MiB, and from the device of O_DIRECT reads with io_uring, several in flight.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <liburing.h>

#include "shm/clock.h"
#include "tests/bench/bench.h"
#include "tests/bench/checkpoint.h"
#include "tests/bench/report.h"
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/plan.h"
#include "worker/weights.h"

enum { ROUNDS = 4, FILES_MAX = 16, BLOCK = 4 << 20, DIRECT_BLOCK = 1 << 20 };

static const char USAGE[] = "[DIR [device|cache]] | --make DIR; DIR a directory, --make makes it";

/* The checkpoint to remove in the end, also by a signal; "": none. */
static char remove_from[4096];
static bool remove_dir; /* too: it was made here */
static const int stops[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE};

struct files {
	const char *dir;
	char path[FILES_MAX][512];
	size_t bytes[FILES_MAX], at[FILES_MAX]; /* at: where it goes in memory */
	size_t n, total;
};

/* One thing that is measured: `run` in each of `processes` processes at once. */
struct way {
	const char *name;
	int (*run)(const struct files *f, unsigned arg, unsigned rank);
	unsigned arg, processes;
	bool load;
	bool device_only;
	double seconds; /* of the fastest run; < 0: one failed */
};

static void *fresh_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

/* ---- reading -------------------------------------------------------------------------------- */

struct read_job {
	const struct files *f;
	unsigned char *memory;
	unsigned nth, threads;
	int ret;
};

/* Every threads-th block of every file. */
static void *read_blocks(void *user)
{
	struct read_job *j = user;
	const struct files *f = j->f;

	for (size_t i = 0; i < f->n && j->ret == 0; i++) {
		int fd = open(f->path[i], O_RDONLY | O_CLOEXEC);

		for (size_t at = (size_t)j->nth * BLOCK; at < f->bytes[i];
			at += (size_t)j->threads * BLOCK) {
			size_t n = MIN((size_t)BLOCK, f->bytes[i] - at);

			if (pread(fd, j->memory + f->at[i] + at, n, (off_t)at) != (ssize_t)n)
				j->ret = -EIO;
		}
		close(fd);
	}
	return NULL;
}

static int read_buffered(const struct files *f, unsigned threads, unsigned rank)
{
	unsigned char *memory = fresh_memory(f->total);
	struct read_job jobs[8];
	pthread_t t[8];
	int ret = 0;

	(void)rank;
	if (!memory)
		return -ENOMEM;
	for (unsigned i = 0; i < threads; i++) {
		jobs[i] = (struct read_job){f, memory, i, threads, 0};
		if (pthread_create(&t[i], NULL, read_blocks, &jobs[i]) != 0)
			return -EAGAIN;
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(t[i], NULL);
		ret = ret ? ret : jobs[i].ret;
	}
	return ret;
}

static int read_direct(const struct files *f, unsigned depth, unsigned rank)
{
	unsigned char *memory = fresh_memory(f->total);
	struct io_uring_params params = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	unsigned busy = 0;
	size_t file = 0, at = 0;
	int fds[FILES_MAX];

	(void)rank;
	if (!memory || io_uring_queue_init_params(depth, &ring, &params) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < f->n; i++) {
		fds[i] = open(f->path[i], O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (fds[i] < 0)
			return -errno;
	}
	while (file < f->n || busy) {
		while (busy < depth && file < f->n) {
			io_uring_prep_read(io_uring_get_sqe(&ring), fds[file],
				memory + f->at[file] + at, DIRECT_BLOCK, at);
			busy++;
			at += DIRECT_BLOCK;
			if (at >= f->bytes[file]) {
				file++;
				at = 0;
			}
		}
		if (io_uring_submit_and_wait(&ring, 1) < 0)
			return -EIO;
		while (io_uring_peek_cqe(&ring, &cqe) == 0) {
			if (cqe->res < 0)
				return cqe->res;
			io_uring_cqe_seen(&ring, cqe);
			busy--;
		}
	}
	return 0;
}

/* ---- loading -------------------------------------------------------------------------------- */

static int load_shard(const struct files *f, unsigned arg, unsigned rank)
{
	uint32_t world = arg / 16, threads = arg % 16;
	struct errbuf err = {0};
	struct weights w;
	struct ckpt *ck;
	struct plan plan;
	int ret;

	ret = ckpt_open(f->dir, &ck, &err);
	if (ret == 0)
		ret = plan_build(ck, rank, world, &plan, &err);
	if (ret == 0)
		ret = weights_load(ck, &plan, threads, 0, NULL, NULL, &w, &err);
	if (ret < 0)
		fprintf(stderr, "%s\n", err.text);
	return ret;
}

/* ---- one run -------------------------------------------------------------------------------- */

/*
 * A virtual machine may have given free memory back to its host, and gets it again at 1 GB/s: that
 * would be measured instead. So as much as a run needs is touched and freed just before.
 */
static void touch_memory(size_t bytes)
{
	void *p = fresh_memory(bytes);

	if (!p)
		return;
	memset(p, 1, bytes);
	munmap(p, bytes);
}

/* Drops the files from the page cache, or reads them into it. */
static void prepare(const struct files *f, bool cold)
{
	static char block[1 << 16];

	for (size_t i = 0; i < f->n; i++) {
		int fd = open(f->path[i], O_RDONLY | O_CLOEXEC);

		if (cold)
			(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		while (!cold && read(fd, block, sizeof(block)) > 0)
			;
		close(fd);
	}
}

/* Seconds from the start of the first process to the end of the last; -1: it cannot be done. */
static double run_once(const struct files *f, const struct way *w)
{
	mono_ns_t(*times)[2] =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	mono_ns_t start = 0, end = 0;
	bool ok = true;

	if (times == MAP_FAILED)
		return -1;
	for (unsigned r = 0; r < w->processes; r++) {
		pid_t pid = fork();

		if (pid == 0) {
			int ret;

			for (size_t i = 0; i < ARRAY_LEN(stops); i++)
				signal(stops[i], SIG_DFL);
			times[r][0] = mono_now();
			ret = w->run(f, w->arg, r);
			times[r][1] = mono_now();
			if (ret < 0 && !w->load) /* which says so itself */
				fprintf(stderr, "bench_load: %s: %s\n", w->name, strerror(-ret));
			_exit(ret < 0);
		}
	}
	for (unsigned r = 0; r < w->processes; r++) {
		int status;

		ok &= wait(&status) > 0 && status == 0;
	}
	for (unsigned r = 0; r < w->processes; r++) {
		start = r && start < times[r][0] ? start : times[r][0];
		end = MAX(end, times[r][1]);
	}
	munmap(times, 4096);
	return ok ? (double)(end - start) * 1e-9 : -1;
}

static void add_rows(struct report *rep, const struct files *f, const struct way *ways, size_t n,
	const char *state)
{
	const struct way *best = NULL;
	char what[64];

	for (size_t i = 0; i < n; i++)
		if (!ways[i].load && ways[i].seconds > 0 &&
			(!best || ways[i].seconds < best->seconds))
			best = &ways[i];
	for (size_t i = 0; i < n; i++) {
		double rate = (double)f->total * 1e-9 / ways[i].seconds;

		snprintf(what, sizeof(what), "%s, %s", state, ways[i].name);
		if (ways[i].seconds < 0)
			printf("%s: no row, for a run failed\n", what);
		else if (ways[i].load && best)
			report_add(rep,
				&(struct report_row){.what = what,
					.value = rate,
					.unit = "GB/s",
					.beside = best->name,
					.beside_value = (double)f->total * 1e-9 / best->seconds,
					.least = 0.8});
		else
			report_add(rep,
				&(struct report_row){.what = what, .value = rate, .unit = "GB/s"});
	}
}

/*
 * Files that come from the device may take as much memory again, in the page cache. The rest is for
 * what two workers both hold, and because not all that is touched here is what a run gets.
 */
static size_t run_bytes(const struct files *f, bool cold)
{
	return f->total * (cold ? 2 : 1) + f->total / 2;
}

static void measure(struct report *rep, const struct files *f, bool cold)
{
	struct way ways[] = {
		{.name = "one worker of 2 threads", .run = load_shard, .arg = 16 + 2, .load = true},
		{.name = "two workers of a thread", .run = load_shard, .arg = 32 + 1, .load = true},
		{.name = "read() by one thread", .run = read_buffered, .arg = 1},
		{.name = "read() by two threads", .run = read_buffered, .arg = 2},
		{.name = "O_DIRECT, 8 in flight",
			.run = read_direct,
			.arg = 8,
			.device_only = true},
		{.name = "O_DIRECT, 32 in flight",
			.run = read_direct,
			.arg = 32,
			.device_only = true},
	};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(ways); i++)
		if (cold || !ways[i].device_only)
			ways[n++] = ways[i];
	for (size_t i = 0; i < n; i++)
		ways[i].processes = ways[i].load ? ways[i].arg / 16 : 1;
	for (int round = 0; round < ROUNDS; round++)
		for (size_t i = 0; i < n; i++) {
			double seconds;

			prepare(f, cold);
			touch_memory(run_bytes(f, cold));
			seconds = run_once(f, &ways[i]);
			if (round == 0 || seconds < ways[i].seconds)
				ways[i].seconds = seconds;
		}
	add_rows(rep, f, ways, n, cold ? "device" : "page cache");
}

static void list_files(struct files *f, const struct ckpt *ck)
{
	f->n = MIN(ck->file_n, (size_t)FILES_MAX);
	for (size_t i = 0; i < f->n; i++) {
		snprintf(f->path[i], sizeof(f->path[i]), "%s/%s", f->dir, ck->files[i].name);
		f->bytes[i] = ck->files[i].bytes;
		f->at[i] = f->total;
		f->total += ALIGN_UP(f->bytes[i], (size_t)DIRECT_BLOCK);
	}
}

static void clean_up(void)
{
	if (remove_from[0])
		checkpoint_remove(remove_from, remove_dir);
}

/* Who gives it too little time must see that this is why rows are missing. */
static void on_stop(int signal)
{
	static const char line[] = "bench_load: stopped by a signal; what is not above was not "
				   "measured (DIR device|cache measures one half)\n";

	(void)!write(STDOUT_FILENO, line, sizeof(line) - 1);
	clean_up();
	_exit(128 + signal);
}

struct args {
	const char *dir;  /* NULL: a temporary one */
	const char *half; /* NULL: both */
	bool only;        /* makes the checkpoint and measures nothing */
};

static bool parse(int argc, char **argv, struct args *ret)
{
	*ret = (struct args){.only = argc > 1 && strcmp(argv[1], "--make") == 0};
	if (ret->only) {
		argc--;
		argv++;
		if (argc < 2)
			return false;
	}
	if (argc > (ret->only ? 2 : 3) || (argc > 1 && argv[1][0] == '-'))
		return false;
	ret->dir = argc > 1 ? argv[1] : NULL;
	ret->half = argc > 2 ? argv[2] : NULL;
	return !ret->half || strcmp(ret->half, "device") == 0 || strcmp(ret->half, "cache") == 0;
}

/* The checkpoint in dir, or in a temporary one; 0, or -errno after a line that says why not. */
static int take_checkpoint(const struct args *args, struct files *f)
{
	static char temporary[4000];
	const char *tmp = getenv("TMPDIR");
	struct errbuf err = {0};
	struct ckpt *ck;
	bool made;
	int ret;

	snprintf(temporary, sizeof(temporary), "%s/heddle-bench-load.%d", tmp ? tmp : ".",
		(int)getpid());
	f->dir = args->dir ? args->dir : temporary;
	remove_dir = access(f->dir, F_OK) < 0;
	if (!checkpoint_begun(f->dir))
		snprintf(remove_from, sizeof(remove_from), "%s", f->dir);
	ret = checkpoint_make(f->dir, &made, &err);
	if (ret == 0)
		ret = ckpt_open(f->dir, &ck, &err);
	if (ret < 0) {
		printf("skipped: %s\n", err.text);
		clean_up();
		return ret;
	}
	if (args->dir)
		remove_from[0] = '\0';
	list_files(f, ck);
	ckpt_close(ck);
	return 0;
}

int main(int argc, char **argv)
{
	struct files f = {0};
	struct stat st;
	struct report rep;
	struct args args;

	if (!parse(argc, argv, &args))
		bench_usage(USAGE);
	if (args.dir && !args.only && (stat(args.dir, &st) < 0 || !S_ISDIR(st.st_mode)))
		bench_usage(USAGE);
	for (size_t i = 0; i < ARRAY_LEN(stops); i++)
		signal(stops[i], on_stop);
	if (take_checkpoint(&args, &f) < 0)
		return 77;
	if (args.only)
		return 0;
	report_open(
		&rep, "load", "Loading a checkpoint of 2 GB beside reading its files into memory");
	if (!args.half || strcmp(args.half, "device") == 0)
		measure(&rep, &f, true);
	if (!args.half || strcmp(args.half, "cache") == 0)
		measure(&rep, &f, false);
	clean_up();
	return report_close(&rep);
}
