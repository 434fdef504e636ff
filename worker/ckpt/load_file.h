/*
 * load_file.h: how each file of a checkpoint is read: through the page cache, where it is mapped if
 * that can be, or past it. Part of load.c; its threads share one table.
 *
 * A mapped file that is cut meanwhile, or that the device cannot read, raises SIGBUS in the thread
 * that touches it. Between open and close the signal is caught here: the page then reads as zeros,
 * and `lost` says so. A fault anywhere else goes the way it would have gone. Threads must not block
 * the signal.
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
	bool cached; /* it seems to be in the page cache: asking for it ahead would be in vain */
	_Atomic bool refused; /* O_DIRECT, at the first read */
	uint8_t *map;         /* the whole file, read-only; NULL: it cannot be mapped */
	size_t map_bytes;
	_Atomic uint64_t lost; /* the byte of map that raised SIGBUS first, plus one; 0: none */
};

/*
 * One for each file. The caller frees with load_files_close(). NULL: no memory. Of two tables open
 * at once in a process the second maps nothing.
 */
struct load_file *load_files_open(const struct ckpt *ck, enum load_direct mode);
void load_files_close(struct load_file *files, size_t n);

#endif
