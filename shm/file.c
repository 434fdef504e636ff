#include "shm/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int file_exit_code(int error)
{
	switch (error) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case ENAMETOOLONG:
		return EXIT_NO_INPUT;
	case EACCES:
	case EPERM:
		return EXIT_NO_PERM;
	default:
		return EXIT_OS_ERR;
	}
}

int file_open(
	int dirfd, const char *name, const char *shown, uint64_t *ret_bytes, struct errbuf *err)
{
	/* O_NONBLOCK: opening a FIFO that nobody writes to must not hang us; else it does nothing
	 */
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), error = errno;
	struct stat st;

	/* ENXIO: a socket, or a device that is not there */
	if (fd < 0 && error != ENXIO)
		return err_set(
			err, -error, file_exit_code(error), "%s: %s", shown, strerror(error));
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		if (fd >= 0)
			close(fd);
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s: is not a regular file", shown);
	}
	if (ret_bytes)
		*ret_bytes = (uint64_t)st.st_size;
	return fd;
}

/* Up to the end, or max + 1 bytes of what is longer. The file may change meanwhile. */
static int read_all(int fd, size_t guess, size_t max, char **ret_text, size_t *ret_len)
{
	size_t cap = MIN(guess, max) + 2, len = 0;
	char *text = malloc(cap), *more;
	ssize_t n;

	while (text) {
		n = read(fd, text + len, cap - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			n = -errno;
			free(text);
			return (int)n;
		}
		len += (size_t)n;
		if (n == 0 || len > max) {
			text[len] = '\0';
			*ret_text = text;
			*ret_len = len;
			return 0;
		}
		if (len < cap - 1)
			continue;
		cap = MIN(cap * 2, max + 2);
		more = realloc(text, cap);
		if (!more)
			free(text);
		text = more;
	}
	return -ENOMEM;
}

int file_read(int dirfd, const char *name, const char *shown, size_t max, char **ret_text,
	size_t *ret_len, struct errbuf *err)
{
	uint64_t bytes = 0;
	char *text = NULL;
	size_t len = 0;
	int fd = file_open(dirfd, name, shown, &bytes, err), ret;

	if (fd < 0)
		return fd;
	ret = bytes > max ? 0 : read_all(fd, (size_t)bytes, max, &text, &len);
	close(fd);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "%s: %s", shown, strerror(-ret));
	if (bytes > max || len > max) {
		free(text);
		return err_set(err, -EFBIG, EXIT_DATA_ERR,
			"%s: has %llu bytes; at most %zu are possible", shown,
			(unsigned long long)MAX(bytes, len), max);
	}
	*ret_text = text;
	*ret_len = len;
	return 0;
}

void file_directory(const char *path, char *ret_dir, size_t cap)
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? MAX((size_t)(slash - path), (size_t)1) : 1;

	snprintf(ret_dir, cap, "%.*s", (int)len, slash ? path : ".");
}

bool file_is_null(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}
