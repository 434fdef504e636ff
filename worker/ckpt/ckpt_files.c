#include "worker/ckpt/ckpt_files.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "shm/file.h"

#define INDEX_FILE      "model.safetensors.index.json"
#define SINGLE_FILE     "model.safetensors"
#define INDEX_BYTES_MAX ((size_t)256 << 20)
#define FILES_MAX       4096

static int no_memory(struct errbuf *err)
{
	return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the checkpoint's tables");
}

int ckpt_files_init(const char *dir, struct ckpt_files *f, struct errbuf *err)
{
	char path[PATH_MAX];
	int error;

	memset(f, 0, sizeof(*f));
	f->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	f->real = f->dirfd < 0 ? NULL : realpath(dir, NULL);
	if (!f->real) {
		error = errno;
		ckpt_files_fini(f);
		return err_set(err, -error, file_exit_code(error),
			"%s: %s; a directory with config.json and *.safetensors is needed", dir,
			strerror(error));
	}
	f->dir = strdup(dir);
	if (!f->dir) {
		ckpt_files_fini(f);
		return no_memory(err);
	}
	/* models--X--Y/snapshots/REVISION/ links to models--X--Y/blobs/ */
	if ((size_t)snprintf(path, sizeof(path), "%s/../../blobs", f->real) < sizeof(path))
		f->blobs = realpath(path, NULL);
	return 0;
}

void ckpt_files_fini(struct ckpt_files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		if (f->headers)
			st_fini(&f->headers[i]);
		if (f->files) {
			free(f->files[i].name);
			if (f->files[i].fd >= 0)
				close(f->files[i].fd);
		}
	}
	free(f->files);
	free(f->headers);
	free(f->names);
	free(f->dir);
	free(f->real);
	free(f->blobs);
	if (f->dirfd >= 0)
		close(f->dirfd);
	memset(f, 0, sizeof(*f));
	f->dirfd = -1;
}

/* A link may stay in the directory or lead to the cache's blobs, nowhere else. */
static int check_link(const struct ckpt_files *f, const char *name, struct errbuf *err)
{
	char path[PATH_MAX], *real, *slash;
	struct stat st;
	bool ok;

	if (fstatat(f->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISLNK(st.st_mode))
		return 0; /* a missing file is the opener's matter */
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", f->real, name) >= sizeof(path))
		return err_set(
			err, -ENAMETOOLONG, EXIT_OS_ERR, "%s/%s: path too long", f->dir, name);
	real = realpath(path, NULL);
	if (!real)
		return err_set(err, -ENOENT, EXIT_NO_INPUT, "%s/%s: is a link to nothing (%s)",
			f->dir, name, strerror(errno));
	snprintf(path, sizeof(path), "%s", real);
	slash = strrchr(real, '/');
	*slash = '\0';
	ok = strcmp(real, f->real) == 0 || (f->blobs && strcmp(real, f->blobs) == 0);
	free(real);
	if (!ok)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s/%s: is a link out of the directory, to %s; put the file itself there",
			f->dir, name, path);
	return 0;
}

static int open_file(
	const struct ckpt_files *f, const char *name, uint64_t *ret_bytes, struct errbuf *err)
{
	char path[PATH_MAX];
	int ret = check_link(f, name, err);

	if (ret < 0)
		return ret;
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	return file_open(f->dirfd, name, path, ret_bytes, err);
}

static int read_range(int fd, void *out, size_t n, uint64_t offset)
{
	size_t at = 0;

	while (at < n) {
		ssize_t got = pread(fd, (char *)out + at, n - at, (off_t)(offset + at));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			return -ENODATA;
		at += (size_t)got;
	}
	return 0;
}

int ckpt_files_read(struct ckpt_files *f, const char *name, size_t max_bytes, char **ret_bytes,
	size_t *ret_len, struct errbuf *err)
{
	char path[PATH_MAX];
	int ret = check_link(f, name, err);

	if (ret < 0)
		return ret;
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	return file_read(f->dirfd, name, path, max_bytes, ret_bytes, ret_len, err);
}

/* Opens one shard and reads its header into f->headers[i]. */
static int scan_file(struct ckpt_files *f, size_t i, struct errbuf *err)
{
	struct ckpt_file *file = &f->files[i];
	uint8_t prefix[ST_PREFIX_BYTES] = {0};
	char path[PATH_MAX];
	uint64_t len;
	char *json;
	int ret;

	snprintf(path, sizeof(path), "%s/%s", f->dir, file->name);
	file->fd = open_file(f, file->name, &file->bytes, err);
	if (file->fd < 0)
		return file->fd;
	if (file->bytes < ST_PREFIX_BYTES)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: truncated inside its header: the file has %" PRIu64 " bytes", path,
			file->bytes);
	ret = read_range(file->fd, prefix, sizeof(prefix), 0);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "%s: %s", path, strerror(-ret));
	ret = st_json_len(path, prefix, file->bytes, &len, err);
	if (ret < 0)
		return ret;
	json = malloc(len);
	if (!json)
		return no_memory(err);
	ret = read_range(file->fd, json, len, ST_PREFIX_BYTES);
	if (ret < 0)
		err_set(err, ret, EXIT_OS_ERR, "%s: %s", path, strerror(-ret));
	else
		ret = st_parse(path, json, len, file->bytes, &f->headers[i], err);
	free(json);
	return ret;
}

static int add_file(struct ckpt_files *f, const char *name)
{
	f->files[f->n].fd = -1;
	f->files[f->n].name = strdup(name);
	if (!f->files[f->n].name)
		return -ENOMEM;
	f->n++;
	return 0;
}

static int by_string(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool file_name_ok(const char *name)
{
	size_t len = name ? strlen(name) : 0;

	return len > 0 && len <= NAME_MAX && !strchr(name, '/') && name[0] != '.';
}

/* The distinct files of a weight_map, into f->files. */
static int list_files(struct ckpt_files *f, json_t *map, struct errbuf *err)
{
	const char **list, *key;
	json_t *v;
	size_t n = 0;
	int ret = 0;

	list = calloc(json_object_size(map) + 1, sizeof(*list));
	if (!list)
		return no_memory(err);
	json_object_foreach (map, key, v) {
		if (!file_name_ok(json_string_value(v))) {
			ret = err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s/" INDEX_FILE ": tensor %.255s: \"%.255s\" is not the name of a "
				"file in that directory",
				f->dir, key, json_is_string(v) ? json_string_value(v) : "");
			goto out;
		}
		list[n++] = json_string_value(v);
	}
	qsort(list, n, sizeof(*list), by_string);
	for (size_t i = 0; i < n && ret == 0; i++) {
		if (i > 0 && strcmp(list[i], list[i - 1]) == 0)
			continue;
		if (f->n == FILES_MAX)
			ret = err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s/" INDEX_FILE ": names more than %d files", f->dir, FILES_MAX);
		else if (add_file(f, list[i]) < 0)
			ret = no_memory(err);
	}
out:
	free(list);
	return ret;
}

/* Tensors are looked up without a leading "model.", which some checkpoints carry. */
static const char *canonical(const char *name)
{
	return strncmp(name, "model.", 6) == 0 ? name + 6 : name;
}

static int by_name(const void *a, const void *b)
{
	const struct ckpt_name *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* Every tensor of the headers that the map (NULL: all) assigns to its file. */
static int collect_names(struct ckpt_files *f, json_t *map, struct errbuf *err)
{
	size_t n = 0;

	for (size_t i = 0; i < f->n; i++)
		n += f->headers[i].n;
	f->names = calloc(n + 1, sizeof(*f->names));
	if (!f->names)
		return no_memory(err);
	for (size_t i = 0; i < f->n; i++) {
		for (size_t j = 0; j < f->headers[i].n; j++) {
			const struct st_tensor *t = &f->headers[i].tensors[j];
			const char *file =
				map ? json_string_value(json_object_get(map, t->name)) : NULL;

			if (map && (!file || strcmp(file, f->files[i].name) != 0))
				continue;
			f->names[f->name_n++] =
				(struct ckpt_name){canonical(t->name), t, (uint32_t)i, false};
		}
	}
	qsort(f->names, f->name_n, sizeof(*f->names), by_name);
	for (size_t i = 1; i < f->name_n; i++)
		if (strcmp(f->names[i].name, f->names[i - 1].name) == 0)
			return err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s: tensor %s is there twice: with and without \"model.\"", f->dir,
				f->names[i].name);
	return 0;
}

struct ckpt_name *ckpt_files_find(const struct ckpt_files *f, const char *name)
{
	struct ckpt_name key = {.name = name};

	return bsearch(&key, f->names, f->name_n, sizeof(key), by_name);
}

/* Is every tensor of the index in the file it is said to be in? */
static int check_map(const struct ckpt_files *f, json_t *map, struct errbuf *err)
{
	const char *key;
	json_t *v;

	if (f->name_n == json_object_size(map))
		return 0;
	json_object_foreach (map, key, v) {
		const struct ckpt_name *t = ckpt_files_find(f, canonical(key));

		if (!t || strcmp(f->files[t->file].name, json_string_value(v)) != 0)
			return err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s/" INDEX_FILE
				": tensor %.255s should be in %s, which has no such "
				"tensor",
				f->dir, key, json_string_value(v));
	}
	return 0;
}

static int scan_files(struct ckpt_files *f, json_t *map, struct errbuf *err)
{
	int ret = map ? list_files(f, map, err) : 0;

	if (ret == 0 && !map && add_file(f, SINGLE_FILE) < 0)
		ret = no_memory(err);
	for (size_t i = 0; i < f->n && ret == 0; i++)
		ret = scan_file(f, i, err);
	if (ret == 0)
		ret = collect_names(f, map, err);
	if (ret == 0 && map)
		ret = check_map(f, map, err);
	return ret;
}

/* Parses the index; *ret_map points into *ret_root. */
static int read_index(struct ckpt_files *f, json_t **ret_root, json_t **ret_map, struct errbuf *err)
{
	json_error_t jerr;
	json_t *root, *map;
	char *bytes;
	size_t len;
	int ret;

	ret = ckpt_files_read(f, INDEX_FILE, INDEX_BYTES_MAX, &bytes, &len, err);
	if (ret < 0)
		return ret;
	root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &jerr);
	free(bytes);
	if (!root)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s/" INDEX_FILE ":%d: not valid JSON: %s", f->dir, jerr.line, jerr.text);
	map = json_object_get(root, "weight_map");
	if (!json_is_object(map) || json_object_size(map) == 0) {
		json_decref(root);
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s/" INDEX_FILE ": has no weight_map of tensors to files", f->dir);
	}
	*ret_root = root;
	*ret_map = map;
	return 0;
}

int ckpt_files_scan(struct ckpt_files *f, struct errbuf *err)
{
	json_t *root = NULL, *map = NULL;
	size_t most;
	int ret = 0;

	if (faccessat(f->dirfd, INDEX_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		ret = read_index(f, &root, &map, err);
	else if (faccessat(f->dirfd, SINGLE_FILE, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		ret = err_set(err, -ENOENT, EXIT_NO_INPUT,
			"%s: holds neither " INDEX_FILE " nor " SINGLE_FILE, f->dir);
	if (ret < 0)
		return ret;
	most = map ? MIN(json_object_size(map), (size_t)FILES_MAX) : 1;
	f->files = calloc(most, sizeof(*f->files));
	f->headers = calloc(most, sizeof(*f->headers));
	ret = f->files && f->headers ? scan_files(f, map, err) : no_memory(err);
	json_decref(root);
	return ret;
}
