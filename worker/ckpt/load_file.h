/*
 * load_file.h: how each file of a checkpoint is read: through the page cache, or past it. Part of
 * load.c; its threads share one table.
 */
#ifndef WORKER_CKPT_LOAD_FILE_H
#define WORKER_CKPT_LOAD_FILE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/load.h"

/* O_DIRECT wants offsets, lengths and memory aligned to the device's block; none is larger. */
enum { LOAD_DIRECT_ALIGN = 4096 };

struct load_file {
	int fd;      /* of struct ckpt */
	int direct;  /* a second descriptor, for O_DIRECT; -1 where it is to be read buffered */
	bool cached; /* all of it is in the page cache: asking for it ahead would be in vain */
	_Atomic bool refused; /* O_DIRECT, at the first read */
};

/* One for each file. The caller frees with load_files_close(). NULL: no memory. */
struct load_file *load_files_open(const struct ckpt *ck, enum load_direct mode);
void load_files_close(struct load_file *files, size_t n);

#endif
