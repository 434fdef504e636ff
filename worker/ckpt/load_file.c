#include "config.h"

#include "worker/ckpt/load_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Is at least a tenth of the file in the page cache? Then buffered reads win. */
static bool is_cached(const struct ckpt_file *file)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), n = DIV_UP(file->bytes, page), hits = 0;
	unsigned char *resident;
	void *map;

	if (n == 0)
		return true;
	resident = malloc(n);
	map = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
	if (resident && map != MAP_FAILED && mincore(map, file->bytes, resident) == 0)
		for (size_t i = 0; i < n; i++)
			hits += resident[i] & 1;
	else
		hits = n; /* not known: the safe way */
	if (map != MAP_FAILED)
		munmap(map, file->bytes);
	free(resident);
	return hits * 10 >= n;
}

static int open_direct(const struct ckpt_file *file)
{
	char path[64];

	/* A second open file: the flag must not touch the descriptor others read by. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

int *load_files_open_direct(const struct ckpt *ck, enum load_direct mode)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t total = 0;
	int *fds = calloc(ck->file_n + 1, sizeof(*fds));

	if (!fds)
		return NULL;
	for (size_t i = 0; i < ck->file_n; i++)
		total += ck->files[i].bytes;
	/* What counts is whether the checkpoint as a whole would push everything else out. */
	for (size_t i = 0; i < ck->file_n; i++) {
		bool direct =
			mode == LOAD_DIRECT_ON || (mode == LOAD_DIRECT_AUTO && total > memory / 2 &&
							  !is_cached(&ck->files[i]));

		fds[i] = direct ? open_direct(&ck->files[i]) : -1;
	}
	return fds;
}

int *load_files_close(int *fds, size_t n)
{
	for (size_t i = 0; fds && i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(fds);
	return NULL;
}
