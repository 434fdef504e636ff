/*
 * file.h: opens and reads the files that a person names or a checkpoint holds. Whatever else may
 * stand at the path (a FIFO, a device, a directory) is refused at once: it is opened without
 * waiting, then looked at. No logging, no policy about paths and links.
 */
#ifndef SHM_FILE_H
#define SHM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

/* The exit code for a file that cannot be had for this errno: 66, 77, else 71. */
int file_exit_code(int error);

/*
 * Opens a regular file for reading, relative to dirfd (AT_FDCWD: as usual). `shown` is its name in
 * err. Returns a descriptor and the file's bytes at that time, or -errno of open(2) (exit code:
 * file_exit_code()), -EINVAL (65) where it is no regular file. ret_bytes may be NULL.
 */
int file_open(int dirfd, const char *name, const char *shown, uint64_t *ret_bytes,
	struct errbuf *err) MUST_CHECK;

/*
 * Reads such a file whole. *ret_text is malloc'd, with a NUL behind its *ret_len bytes. Errors as
 * file_open()'s, -EFBIG (65) for more than max bytes, -ENOMEM, -errno of read(2).
 */
int file_read(int dirfd, const char *name, const char *shown, size_t max, char **ret_text,
	size_t *ret_len, struct errbuf *err) MUST_CHECK;

/* The directory that holds path: "." where it names none. Cut to fit. */
void file_directory(const char *path, char *ret_dir, size_t cap);

/* Does this path lead to /dev/null? Where an empty file may be given, so may that. */
bool file_is_null(const char *path);

#endif
