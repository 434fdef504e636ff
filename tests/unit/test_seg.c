#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/seg.h"
#include "shm/sum.h"

static const struct seg_geometry geometry = {.generation = 3,
	.workers = 2,
	.step_ring_bytes = 65536,
	.reply_ring_bytes = 4096,
	.comm_bytes = 100000};
static struct conf conf;
static struct seg_group group, other;

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void sign(struct seg_hdr *hdr)
{
	hdr->sum = sum_bytes(hdr, offsetof(struct seg_hdr, sum), SEG_LAYOUT);
}

/* A memfd with a header of the test's choice. */
static int forge(const struct seg_hdr *hdr, uint64_t bytes, int seals)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(
		pwrite(fd, hdr, MIN(bytes, sizeof(*hdr)), 0), (ssize_t)MIN(bytes, sizeof(*hdr)));
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

#define SEALS_WORKER (F_SEAL_SHRINK | F_SEAL_GROW)
#define SEALS_COORD  (SEALS_WORKER | F_SEAL_FUTURE_WRITE)

/* Attaching must fail with a sentence that has `word`, and leave nothing behind. */
static void assert_refused(int fd, enum seg_kind kind, uint32_t rank, const char *word)
{
	struct errbuf err = {{0}, 0};
	struct seg seg;
	int before = open_fds();

	assert_int_equal(seg_attach(&seg, fd, kind, rank, false, &err), -EBADMSG);
	if (!strstr(err.text, word))
		fail_msg("\"%s\" does not say \"%s\"", err.text, word);
	assert_int_equal(err.exit_code, EXIT_SOFTWARE_ERR);
	assert_int_equal(open_fds(), before);
	close(fd);
}

static int make_group(void **state)
{
	struct errbuf err = {{0}, 0};

	(void)state;
	memset(&conf, 0x5a, sizeof(conf));
	conf.fabric_workers = 2;
	if (seg_group_create(&group, &geometry, &conf, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return -1;
	}
	return 0;
}

static int end_group(void **state)
{
	(void)state;
	seg_group_close(&group);
	seg_group_close(&group);
	return 0;
}

static int attach(struct seg_group *g, uint32_t rank, struct errbuf *err)
{
	int fds[SEG_WORKERS_MAX], i, r, coord = dup(group.coord.fd), bell = dup(group.bell_fd);

	for (i = 0; i < 2; i++)
		fds[i] = dup(group.workers[i].fd);
	r = seg_group_attach_fds(g, rank, coord, bell, fds, err);
	return r;
}

static void test_what_one_writes_the_other_reads(void **state)
{
	struct errbuf err;

	(void)state;
	assert_int_equal(attach(&other, 1, &err), 0);
	assert_int_equal(other.geometry.generation, 3);
	assert_int_equal(other.coord_pid, getpid());
	assert_memory_equal(other.coord.conf, &conf, sizeof(conf));
	atomic_store(&group.coord.ctl->word.value, 42);
	assert_int_equal(other.coord.ctl->word.value, 42);
	slot_set_state(other.workers[1].slot, WORKER_LOADING);
	assert_int_equal(slot_state(group.workers[1].slot), WORKER_LOADING);
	memset(other.workers[1].comm, 7, geometry.comm_bytes);
	assert_int_equal(group.workers[1].comm[geometry.comm_bytes - 1], 7);
	other.workers[1].ring.base[5] = 9;
	assert_int_equal(group.workers[1].ring.base[5], 9);
	assert_int_equal((uintptr_t)group.workers[0].flags % 64, 0);
	assert_int_equal((uintptr_t)group.coord.reply_tails % 64, 0);
	if (other.workers[1].ring.mirrored)
		assert_int_equal(group.workers[1].ring.base[5 + geometry.reply_ring_bytes], 9);
	seg_group_close(&other);
}

static void test_parts_do_not_overlap(void **state)
{
	const struct seg *segs[] = {&group.coord, &group.workers[1]};
	size_t s, i;

	(void)state;
	for (s = 0; s < 2; s++) {
		uint64_t end = sizeof(struct seg_hdr);

		for (i = 0; i < SEG_PART__COUNT; i++) {
			if (!segs[s]->hdr.parts[i].bytes)
				continue;
			assert_true(segs[s]->hdr.parts[i].off >= end);
			end = segs[s]->hdr.parts[i].off + segs[s]->hdr.parts[i].bytes;
		}
		assert_true(end <= segs[s]->bytes);
	}
}

static void test_only_the_owner_can_write(void **state)
{
	struct errbuf err = {{0}, 0};
	struct seg seg;
	int fd = group.coord.fd, i;

	(void)state;
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(errno, EPERM);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(ftruncate(fd, 1 << 30), -1);
	assert_int_equal(ftruncate(group.workers[0].fd, 0), -1);
	assert_int_equal(attach(&other, 0, &err), 0);
	assert_int_equal(mprotect(other.coord.base, 4096, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(mprotect(other.workers[1].base, 4096, PROT_READ), 0);
	/* the worker took its own: nobody takes it a second time, nor writes by the fd */
	i = dup(group.workers[0].fd);
	assert_int_equal(seg_attach(&seg, i, SEG_WORKER, 0, true, &err), -EPERM);
	assert_non_null(strstr(err.text, "sealed"));
	assert_int_equal(pwrite(i, "x", 1, 0), -1);
	close(i);
	seg_group_close(&other);
}

static void test_fds_are_out_of_the_childrens_way_and_closed_on_exec(void **state)
{
	int fds[] = {group.coord.fd, group.workers[0].fd, group.workers[1].fd, group.bell_fd};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(fds); i++) {
		assert_true(fds[i] >= SEG_FD__END);
		assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
	}
}

static void test_nothing_is_left_open(void **state)
{
	struct seg_group *g = &other;
	struct seg_geometry bad = geometry;
	int before = open_fds(), i;

	(void)state;
	for (i = 0; i < 3; i++) {
		assert_int_equal(seg_group_create(g, &geometry, &conf, NULL), 0);
		seg_group_close(g);
	}
	bad.workers = 65;
	assert_int_equal(seg_group_create(g, &bad, &conf, NULL), -EINVAL);
	assert_int_equal(open_fds(), before);
}

static void test_bad_geometry_returns_einval_and_says_what(void **state)
{
	struct seg_geometry bad[8];
	static const char *const words[] = {"workers", "workers", "step ring", "step ring",
		"reply ring", "reply ring", "collective", "generation"};
	struct errbuf err;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = geometry;
	bad[0].workers = 0;
	bad[1].workers = SEG_WORKERS_MAX + 1;
	bad[2].step_ring_bytes = 65536 + 4096;
	bad[3].step_ring_bytes = RING_BYTES_MAX * 2;
	bad[4].reply_ring_bytes = 2048;
	bad[5].reply_ring_bytes = 0;
	bad[6].comm_bytes = SEG_COMM_MAX + 1;
	bad[7].generation = 0;
	for (i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(seg_group_create(&other, &bad[i], &conf, &err), -EINVAL);
		assert_non_null(strstr(err.text, words[i]));
	}
}

static void test_every_flipped_bit_of_a_header_is_refused(void **state)
{
	size_t bit;

	(void)state;
	for (bit = 0; bit < sizeof(struct seg_hdr) * 8; bit++) {
		struct seg_hdr hdr = group.workers[0].hdr;

		((uint8_t *)&hdr)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_refused(forge(&hdr, group.workers[0].bytes, SEALS_WORKER), SEG_WORKER, 0,
			"bad segment");
	}
}

static void test_wrong_but_signed_headers_are_refused_by_field(void **state)
{
	const struct seg_hdr good = group.workers[0].hdr;
	uint64_t bytes = group.workers[0].bytes;
	struct seg_hdr h;

	(void)state;
#define REFUSE(change, word)                                                                       \
	h = good;                                                                                  \
	change;                                                                                    \
	sign(&h);                                                                                  \
	assert_refused(forge(&h, bytes, SEALS_WORKER), SEG_WORKER, 0, word)
	REFUSE(h.magic++, "magic");
	REFUSE(h.layout++, "layout");
	REFUSE(h.kind = SEG_COORD, "kind");
	REFUSE(h.rank = 1, "worker 1");
	REFUSE(h.pid = 0, "pid");
	REFUSE(h.bytes += SEG_PAGE, "bytes");
	REFUSE(h.geometry.workers = 99, "workers");
	REFUSE(h.geometry.reply_ring_bytes *= 2, "part");
	REFUSE(h.geometry.comm_bytes += 4096, "part");
	REFUSE(h.parts[SEG_PART_SLOT].off += 4, "part SLOT");
	REFUSE(h.parts[SEG_PART_COMM].off = UINT64_MAX - 4095, "part COMM");
	REFUSE(h.parts[SEG_PART_REPLY_DATA].bytes = UINT64_MAX, "part REPLY_DATA");
	REFUSE(h.parts[SEG_PART_CONF].bytes = 8, "part CONF");
	h = good;
	assert_refused(forge(&h, bytes - SEG_PAGE, SEALS_WORKER), SEG_WORKER, 0, "bytes");
	assert_refused(forge(&h, sizeof(h) - 1, SEALS_WORKER), SEG_WORKER, 0, "too short");
	assert_refused(forge(&h, 0, SEALS_WORKER), SEG_WORKER, 0, "too short");
}

static void test_unsealed_and_foreign_files_are_refused(void **state)
{
	const struct seg_hdr *worker = &group.workers[0].hdr, *coord = &group.coord.hdr;
	int fds[2];

	(void)state;
	assert_refused(forge(worker, worker->bytes, 0), SEG_WORKER, 0, "seals");
	assert_refused(forge(worker, worker->bytes, F_SEAL_SHRINK), SEG_WORKER, 0, "seals");
	assert_refused(forge(coord, coord->bytes, SEALS_WORKER), SEG_COORD, 0, "seals");
	/* no file of a tmpfs, where one can be sealed as a memfd is, and the sentence is another */
	assert_refused(open("/proc/self/status", O_RDONLY), SEG_WORKER, 0, "not a memfd");
	assert_int_equal(pipe(fds), 0);
	assert_refused(fds[0], SEG_WORKER, 0, "not a memfd");
	close(fds[1]);
	assert_refused(1000, SEG_WORKER, 0, "not a memfd");
}

static void test_damaged_configuration_is_refused(void **state)
{
	const struct seg_hdr *hdr = &group.coord.hdr;

	(void)state;
	/* the conf of a forged segment is all zero, its checksum is that of ours */
	assert_refused(forge(hdr, hdr->bytes, SEALS_COORD), SEG_COORD, 0, "configuration");
}

static void test_segments_of_two_groups_do_not_mix(void **state)
{
	struct seg_geometry next = geometry;
	struct errbuf err;
	int fds[2];

	(void)state;
	next.generation++;
	assert_int_equal(seg_group_create(&other, &next, &conf, NULL), 0);
	fds[0] = dup(group.workers[0].fd);
	fds[1] = dup(other.workers[1].fd);
	{
		static struct seg_group mixed;

		assert_int_equal(seg_group_attach_fds(&mixed, 0, dup(group.coord.fd), 0, fds, &err),
			-EBADMSG);
		assert_non_null(strstr(err.text, "another group"));
		assert_int_equal(seg_group_attach_fds(&mixed, 2, dup(group.coord.fd), 0, fds, &err),
			-EINVAL);
	}
	seg_group_close(&other);
}

static void test_lost_group_ends_alive(void **state)
{
	(void)state;
	assert_int_equal(attach(&other, 0, NULL), 0);
	/* this test is its own coordinator, so that its parent is not */
	assert_int_equal(seg_group_alive(&other), -EPIPE);
	other.coord_pid = getppid();
	assert_int_equal(seg_group_alive(&other), 0);
	seg_group_set_lost(&group);
	assert_int_equal(seg_group_alive(&other), -EPIPE);
	assert_int_equal(seg_group_alive(&group), 0);
	seg_group_close(&other);
}

#define IN_GROUP(f) cmocka_unit_test_setup_teardown(f, make_group, end_group)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_GROUP(test_what_one_writes_the_other_reads),
		IN_GROUP(test_parts_do_not_overlap),
		IN_GROUP(test_only_the_owner_can_write),
		IN_GROUP(test_fds_are_out_of_the_childrens_way_and_closed_on_exec),
		IN_GROUP(test_nothing_is_left_open),
		IN_GROUP(test_bad_geometry_returns_einval_and_says_what),
		IN_GROUP(test_every_flipped_bit_of_a_header_is_refused),
		IN_GROUP(test_wrong_but_signed_headers_are_refused_by_field),
		IN_GROUP(test_unsealed_and_foreign_files_are_refused),
		IN_GROUP(test_damaged_configuration_is_refused),
		IN_GROUP(test_segments_of_two_groups_do_not_mix),
		IN_GROUP(test_lost_group_ends_alive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
