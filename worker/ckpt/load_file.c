#include "config.h"

#include "worker/ckpt/load_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SAMPLES = 256, SAMPLE_PAGES = 8 };

/* What a signal handler can only know from here. The table it guards is also who holds it. */
static struct {
	_Atomic(struct load_file *) files;
	size_t n, page;
	struct sigaction old;
} guard;

/* Puts zeros where the file has no page any more, and lets the thread go on. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	const uint8_t *at = info->si_addr;
	int saved = errno;

	(void)context;
	for (size_t i = 0; i < guard.n && info->si_code > 0; i++) { /* > 0: not by kill() */
		struct load_file *f = &guard.files[i];
		uint64_t none = 0, byte = (uint64_t)(at - f->map);

		if (!f->map || at < f->map || at >= f->map + f->map_bytes)
			continue;
		if (mmap(f->map + byte / guard.page * guard.page, guard.page, PROT_READ,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			break;
		atomic_compare_exchange_strong(&f->lost, &none, byte + 1);
		errno = saved;
		return;
	}
	(void)sigaction(SIGBUS, &guard.old, NULL);
	(void)raise(signal);
}

/* Before it no file is mapped, after it the table stays where it is. False: another is guarded. */
static bool guard_files(struct load_file *files, size_t n)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	struct load_file *none = NULL;

	if (!atomic_compare_exchange_strong(&guard.files, &none, files))
		return false;
	sigfillset(&action.sa_mask);
	guard.n = n;
	guard.page = (size_t)sysconf(_SC_PAGESIZE);
	if (sigaction(SIGBUS, &action, &guard.old) == 0)
		return true;
	atomic_store(&guard.files, NULL);
	return false;
}

static void unguard_files(struct load_file *files)
{
	if (atomic_load(&guard.files) != files)
		return;
	(void)sigaction(SIGBUS, &guard.old, NULL);
	guard.n = 0;
	atomic_store(&guard.files, NULL);
}

/*
 * How much of a mapped file is in the page cache, of SAMPLES: a few pages are looked at in each
 * part of it, for looking at all takes as long as reading a twentieth. All, where it cannot be
 * known.
 */
static unsigned count_cached(uint8_t *map, size_t bytes, size_t page)
{
	unsigned char there[SAMPLE_PAGES];
	unsigned hits = 0;

	for (size_t i = 0; i < SAMPLES; i++) {
		size_t at = bytes / page * i / SAMPLES * page;
		size_t n = MIN(bytes - at, SAMPLE_PAGES * page);

		memset(there, 1, sizeof(there));
		if (map != MAP_FAILED && mincore(map + at, n, there) < 0)
			return SAMPLES;
		hits += memchr(there, 0, sizeof(there)) == NULL;
	}
	return hits;
}

static int open_direct(const struct ckpt_file *file)
{
	char path[64];

	/* A second open file: the flag must not touch the descriptor others read by. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

static void open_one(struct load_file *f, const struct ckpt_file *from, enum load_direct mode,
	size_t page, bool guarded)
{
	void *map = mmap(NULL, from->bytes, PROT_READ, MAP_SHARED, from->fd, 0);
	unsigned hits = count_cached(map, from->bytes, page);
	bool direct = mode == LOAD_DIRECT_ON || (mode == LOAD_DIRECT_AUTO && hits < SAMPLES / 2);

	f->fd = from->fd;
	f->cached = hits == SAMPLES;
	f->direct = direct ? open_direct(from) : -1;
	/* Each read is announced; what the kernel would guess beside that is read twice. */
	if (!f->cached)
		(void)posix_fadvise(from->fd, 0, 0, POSIX_FADV_RANDOM);
	if (map == MAP_FAILED)
		return;
	if (guarded) {
		f->map_bytes = from->bytes;
		f->map = map;
	} else {
		(void)munmap(map, from->bytes);
	}
}

struct load_file *load_files_open(const struct ckpt *ck, enum load_direct mode)
{
	struct load_file *files = calloc(ck->file_n + 1, sizeof(*files));
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	bool guarded;

	if (!files)
		return NULL;
	guarded = guard_files(files, ck->file_n);
	for (size_t i = 0; i < ck->file_n; i++)
		open_one(&files[i], &ck->files[i], mode, page, guarded);
	return files;
}

void load_files_close(struct load_file *files, size_t n)
{
	if (files)
		unguard_files(files);
	for (size_t i = 0; files && i < n; i++) {
		if (files[i].direct >= 0)
			close(files[i].direct);
		if (files[i].map)
			(void)munmap(files[i].map, files[i].map_bytes);
	}
	free(files);
}
