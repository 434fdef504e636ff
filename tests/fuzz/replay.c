/*
 * main() for a fuzz target without libFuzzer: replays every file of the folders given, or of
 * tests/fuzz/corpus/NAME for a program called NAME_replay.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns the number of files replayed, or -1. */
static int replay(const char *dir)
{
	struct dirent *e;
	DIR *d = opendir(dir);
	int n = 0;

	if (!d) {
		perror(dir);
		return -1;
	}
	while ((e = readdir(d))) {
		char path[4096 + 256 + 2];
		uint8_t *data;
		size_t len;
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		f = fopen(path, "re");
		if (!f || fseek(f, 0, SEEK_END) < 0) {
			perror(path);
			closedir(d);
			return -1;
		}
		len = (size_t)ftell(f);
		rewind(f);
		data = malloc(len ? len : 1);
		if (data && fread(data, 1, len, f) == len) {
			LLVMFuzzerTestOneInput(data, len);
			n++;
		}
		free(data);
		fclose(f);
	}
	closedir(d);
	return n;
}

int main(int argc, char **argv)
{
	const char *src = getenv("HEDDLE_SRCDIR"), *name = strrchr(argv[0], '/');
	char dir[4096], stem[256];
	int n = 0, total = 0;

	snprintf(stem, sizeof(stem), "%s", name ? name + 1 : argv[0]);
	if (strstr(stem, "_replay"))
		*strstr(stem, "_replay") = '\0';
	snprintf(dir, sizeof(dir), "%s/tests/fuzz/corpus/%s", src ? src : ".",
		strncmp(stem, "fuzz_", 5) == 0 ? stem + 5 : stem);
	for (int i = argc > 1 ? 1 : 0; i < argc; i++) {
		n = replay(argc > 1 ? argv[i] : dir);
		if (n < 0)
			return 1;
		total += n;
	}
	printf("%d inputs\n", total);
	return total > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
