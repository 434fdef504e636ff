#include "config.h"

#include "worker/ckpt/load_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages of the file in the page cache; all of them where that cannot be known. */
static size_t count_cached(const struct ckpt_file *file, size_t pages)
{
	unsigned char *resident = malloc(pages);
	void *map = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
	size_t hits = 0;

	if (resident && map != MAP_FAILED && mincore(map, file->bytes, resident) == 0)
		for (size_t i = 0; i < pages; i++)
			hits += resident[i] & 1;
	else
		hits = pages;
	if (map != MAP_FAILED)
		munmap(map, file->bytes);
	free(resident);
	return hits;
}

static int open_direct(const struct ckpt_file *file)
{
	char path[64];

	/* A second open file: the flag must not touch the descriptor others read by. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

struct load_file *load_files_open(const struct ckpt *ck, enum load_direct mode)
{
	struct load_file *files = calloc(ck->file_n + 1, sizeof(*files));
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!files)
		return NULL;
	for (size_t i = 0; i < ck->file_n; i++) {
		const struct ckpt_file *from = &ck->files[i];
		size_t pages = DIV_UP(from->bytes, page), hits = count_cached(from, pages);
		bool direct = mode == LOAD_DIRECT_ON ||
			      (mode == LOAD_DIRECT_AUTO && hits < DIV_UP(pages, (size_t)2));

		files[i].fd = from->fd;
		files[i].cached = hits == pages;
		files[i].direct = direct ? open_direct(from) : -1;
		/* Each read is announced; what the kernel would guess beside that is read twice. */
		if (!files[i].cached)
			(void)posix_fadvise(from->fd, 0, 0, POSIX_FADV_RANDOM);
	}
	return files;
}

void load_files_close(struct load_file *files, size_t n)
{
	for (size_t i = 0; files && i < n; i++)
		if (files[i].direct >= 0)
			close(files[i].direct);
	free(files);
}
