/* The table of files a load reads from, when several loads run in one process. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/load_file.h"

enum { LOADERS = 4, ROUNDS = 200 };

struct loader {
	pthread_t thread;
	const struct ckpt *ck;
	pthread_barrier_t *start;
	unsigned mapped, wrong; /* tables that had mappings; bytes that are not the file's */
};

static void *open_and_close(void *user)
{
	struct loader *l = user;
	const struct ckpt *ck = l->ck;

	pthread_barrier_wait(l->start);
	for (int i = 0; i < ROUNDS; i++) {
		struct load_file *files = load_files_open(ck, LOAD_DIRECT_OFF);
		uint8_t first[8];

		l->wrong += pread(ck->files[0].fd, first, sizeof(first), 0) != sizeof(first);
		l->mapped += files[0].map != NULL;
		if (files[0].map)
			l->wrong += memcmp(files[0].map, first, sizeof(first)) != 0;
		load_files_close(files, ck->file_n);
	}
	return NULL;
}

/* One of them at a time maps, the others read; none takes the guard from under another. */
static void test_tables_open_at_once_leave_each_other_alone(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};
	struct fix_model *m = fix_new(&o);
	struct loader loaders[LOADERS];
	struct sigaction before, after;
	pthread_barrier_t start;
	struct ckpt *ck = fix_open(m);
	unsigned mapped = 0;

	(void)state;
	sigaction(SIGBUS, NULL, &before);
	pthread_barrier_init(&start, NULL, LOADERS);
	for (int i = 0; i < LOADERS; i++) {
		loaders[i] = (struct loader){.ck = ck, .start = &start};
		assert_int_equal(
			pthread_create(&loaders[i].thread, NULL, open_and_close, &loaders[i]), 0);
	}
	for (int i = 0; i < LOADERS; i++) {
		pthread_join(loaders[i].thread, NULL);
		assert_int_equal(loaders[i].wrong, 0);
		mapped += loaders[i].mapped;
	}
	assert_true(mapped > 0);
	sigaction(SIGBUS, NULL, &after);
	assert_ptr_equal(before.sa_sigaction, after.sa_sigaction);
	pthread_barrier_destroy(&start);
	ckpt_close(ck);
	fix_free(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables_open_at_once_leave_each_other_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
