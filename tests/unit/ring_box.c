#include "config.h"

#include "tests/unit/ring_box.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/clock.h"

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static uint8_t *map_twice(uint64_t bytes)
{
	int fd = memfd_create("ring_box", MFD_CLOEXEC), i;
	uint8_t *space = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(fd >= 0 && space != MAP_FAILED && ftruncate(fd, (off_t)bytes) == 0, "memfd");
	for (i = 0; i < 2; i++)
		must(mmap(space + (uint64_t)i * bytes, bytes, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED,
			"mmap");
	close(fd);
	return space;
}

struct ring_box *ring_box_new(uint64_t bytes, bool mirrored, uint32_t readers)
{
	const struct ring_tail *tails[BOX_READERS] = {NULL};
	struct ring_box *box = aligned_alloc(RING_LINE, ALIGN_UP(sizeof(*box), RING_LINE));
	uint32_t i;

	must(box != NULL, "malloc");
	memset(box, 0, sizeof(*box));
	box->data = (struct ring_data){.bytes = bytes, .mirrored = mirrored};
	box->data.base = mirrored ? map_twice(bytes) : aligned_alloc(RING_LINE, bytes);
	must(box->data.base != NULL, "malloc");
	memset(box->data.base, 0xa5, bytes);
	for (i = 0; i < readers; i++) {
		tails[i] = &box->tails[i];
		must(ring_reader_init(&box->readers[i], &box->data, &box->head, &box->tails[i]) ==
				0,
			"ring_reader_init");
	}
	must(ring_writer_init(&box->writer, &box->data, &box->head, tails, readers) == 0,
		"ring_writer_init");
	return box;
}

void ring_box_free(struct ring_box *box)
{
	if (box->data.mirrored)
		munmap(box->data.base, 2 * box->data.bytes);
	else
		free(box->data.base);
	free(box);
}

void box_fill(uint8_t *out, uint64_t number, size_t bytes)
{
	size_t i;

	for (i = 0; i < bytes; i++)
		out[i] = box_byte(number, i);
}

bool box_same(const uint8_t *bytes, uint64_t number, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (bytes[i] != box_byte(number, i))
			return false;
	return true;
}

uint64_t box_seed(void)
{
	const char *given = getenv("HEDDLE_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : mono_now() | 1;

	printf("# HEDDLE_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed;
}
