/*
 * replay.c: a main() for a fuzz target that is built without libFuzzer: runs it once on each file
 * given, or on each file of a directory given, and on truncations of each. So the corpus is
 * replayed by `make check` with any compiler.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Copies to a block of exactly that size, so that a sanitizer sees a read past its end. */
static void run(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	if (!copy)
		abort();
	memcpy(copy, data, size);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

static int replay_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	struct stat st;
	uint8_t *data;
	size_t size;

	if (!f || fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode)) {
		fprintf(stderr, "%s: cannot be read\n", path);
		return 1;
	}
	data = malloc((size_t)st.st_size + 1);
	size = data ? fread(data, 1, (size_t)st.st_size, f) : 0;
	fclose(f);
	run(data, size);
	for (size_t cut = size > 2000 ? size / 50 : 1, n = 0; n < size; n += cut)
		run(data, n);
	free(data);
	return 0;
}

int main(int argc, char **argv)
{
	int files = 0, bad = 0;
	char path[4096];

	for (int i = 1; i < argc; i++) {
		DIR *dir = opendir(argv[i]);
		struct dirent *e;

		if (!dir) {
			bad += replay_file(argv[i]);
			files++;
			continue;
		}
		while ((e = readdir(dir))) {
			if (e->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "%s/%s", argv[i], e->d_name);
			bad += replay_file(path);
			files++;
		}
		closedir(dir);
	}
	printf("%d inputs replayed\n", files);
	return bad || files == 0;
}
