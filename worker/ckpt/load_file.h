/*
 * load_file.h: how each file of a checkpoint is read: buffered, or past the page cache. Part of
 * load.c.
 */
#ifndef WORKER_CKPT_LOAD_FILE_H
#define WORKER_CKPT_LOAD_FILE_H

#include <stdbool.h>

#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/load.h"

/* O_DIRECT wants offsets, lengths and memory aligned to the device's block; none is larger. */
enum { LOAD_DIRECT_ALIGN = 4096 };

/*
 * A second descriptor for O_DIRECT, one for each file, -1 where it is to be read buffered. The
 * caller frees with load_files_close(). NULL: no memory.
 */
int *load_files_open_direct(const struct ckpt *ck, enum load_direct mode);
int *load_files_close(int *fds, size_t n);

#endif
