#include "config.h"

#include "shm/seg.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/msg.h"
#include "shm/sum.h"

#ifndef MFD_NOEXEC_SEAL /* Linux 6.3 */
#define MFD_NOEXEC_SEAL 8u
#endif

#define SEALS_SIZE  (F_SEAL_SHRINK | F_SEAL_GROW)
#define SEALS_TAKEN (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* The mapping twice hides races from TSan, which tracks addresses. */
#ifdef HEDDLE_TSAN
#define MIRROR false
#else
#define MIRROR true
#endif

static const char *const part_names[] = {
#define X(name, kind, bytes, alignment) #name,
	SEG_PARTS(X)
#undef X
};

_Static_assert(sizeof(struct seg_hdr) % 8 == 0, "no hidden bytes at the end of the header");

/* ---- layout ---- */

/* Every key with its type, and the words of its choices, in order: what struct conf means. */
static const char conf_meaning[] =
#define CONF_SECTION(s, help)
#define CONF_STR(s, k, ...)              "str " #s "." #k "\n"
#define CONF_BOOL(s, k, ...)             "bool " #s "." #k "\n"
#define X(name, suffix)                  " " name
#define CONF_ENUM(s, k, d, choices, ...) "enum " #s "." #k CONF_##choices(X) "\n"
#define CONF_OCT(s, k, ...)              "oct " #s "." #k "\n"
#define CONF_INT(s, k, ...)              "int " #s "." #k "\n"
#define CONF_SIZE(s, k, ...)             "size " #s "." #k "\n"
#define CONF_TIME(s, k, ...)             "time " #s "." #k "\n"
#define CONF_REAL(s, k, ...)             "real " #s "." #k "\n"
#include "etc/conf.def"
#include "etc/conf_undef.def"
#undef X
	;

/* SEG_LAYOUT with what of it the compiler knows, as one number that two programs compare. */
static uint32_t layout_number(void)
{
	static const uint64_t sizes[] = {
		sizeof(struct conf),
		sizeof(struct seg_hdr),
		sizeof(struct seg_ctl),
		sizeof(struct seg_worker_ctl),
		sizeof(struct worker_slot),
		sizeof(struct worker_stats),
		sizeof(struct ring_head),
		sizeof(struct ring_tail),
		sizeof(struct ring_record),
		sizeof(struct msg_hdr),
		sizeof(struct msg_step),
		sizeof(struct msg_seq),
		sizeof(struct msg_sample),
		sizeof(struct msg_bias),
		sizeof(struct msg_result),
		sizeof(struct msg_token),
		sizeof(struct msg_alt),
		sizeof(struct msg_failed),
	};
	uint64_t sum = sum_bytes(sizes, sizeof(sizes), SEG_LAYOUT);

	sum = sum_bytes(conf_meaning, sizeof(conf_meaning), sum);
	return (uint32_t)(sum ^ sum >> 32);
}

static int check_ring_bytes(const char *what, uint64_t bytes, struct errbuf *err)
{
	uint64_t least = MAX((uint64_t)sysconf(_SC_PAGESIZE), RING_BYTES_MIN);

	if (bytes < least || bytes > RING_BYTES_MAX || bytes & (bytes - 1))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"%s ring of %llu bytes: it must be a power of two, %llu to %llu", what,
			(unsigned long long)bytes, (unsigned long long)least,
			(unsigned long long)RING_BYTES_MAX);
	return 0;
}

static int check_geometry(const struct seg_geometry *g, struct errbuf *err)
{
	int r;

	if (g->workers < 1 || g->workers > SEG_WORKERS_MAX)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%u workers: must be 1 to %d",
			g->workers, SEG_WORKERS_MAX);
	if (!g->generation)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR, "generations count from 1");
	if (g->comm_bytes > SEG_COMM_MAX)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
			"collective area of %llu bytes: must be at most %llu",
			(unsigned long long)g->comm_bytes, (unsigned long long)SEG_COMM_MAX);
	r = check_ring_bytes("step", g->step_ring_bytes, err);
	return r < 0 ? r : check_ring_bytes("reply", g->reply_ring_bytes, err);
}

/* Fills parts and bytes from kind and geometry. */
static void lay_out(struct seg_hdr *hdr)
{
	const struct seg_geometry *g = &hdr->geometry;
	uint64_t off = sizeof(*hdr);

	memset(hdr->parts, 0, sizeof(hdr->parts));
#define X(name, kind_, bytes_, alignment)                                                          \
	if (hdr->kind == SEG_##kind_) {                                                            \
		off = ALIGN_UP(off, alignment);                                                    \
		hdr->parts[SEG_PART_##name].off = off;                                             \
		hdr->parts[SEG_PART_##name].bytes = bytes_;                                        \
		off += hdr->parts[SEG_PART_##name].bytes;                                          \
	}
	SEG_PARTS(X)
#undef X
	hdr->bytes = ALIGN_UP(off, SEG_PAGE);
}

static uint64_t hdr_sum(const struct seg_hdr *hdr)
{
	return sum_bytes(hdr, offsetof(struct seg_hdr, sum), SEG_LAYOUT);
}

/* ---- mapping ---- */

static enum seg_part ring_part(const struct seg *seg)
{
	return seg->hdr.kind == SEG_COORD ? SEG_PART_STEP_DATA : SEG_PART_REPLY_DATA;
}

/* Address space for the ring's data twice, then the same pages into both halves. */
static int map_mirror(struct seg *seg, int prot)
{
	uint64_t bytes = seg->hdr.parts[ring_part(seg)].bytes, i;
	off_t off = (off_t)seg->hdr.parts[ring_part(seg)].off;
	uint8_t *space = mmap(
		NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (space == MAP_FAILED)
		return -errno;
	seg->mirror = space;
	seg->mirror_bytes = 2 * bytes;
	for (i = 0; i < 2; i++)
		if (mmap(space + i * bytes, bytes, prot, MAP_SHARED | MAP_FIXED, seg->fd, off) ==
			MAP_FAILED)
			return -errno;
	return 0;
}

static void *part_at(const struct seg *seg, enum seg_part part)
{
	return seg->hdr.parts[part].bytes ? (uint8_t *)seg->base + seg->hdr.parts[part].off : NULL;
}

static void set_pointers(struct seg *seg)
{
	seg->ring.bytes = seg->hdr.parts[ring_part(seg)].bytes;
	seg->ring.mirrored = seg->mirror != NULL;
	seg->ring.base = seg->mirror ? seg->mirror : part_at(seg, ring_part(seg));
	seg->conf = part_at(seg, SEG_PART_CONF);
	seg->ctl = part_at(seg, SEG_PART_CTL);
	seg->step_head = part_at(seg, SEG_PART_STEP_HEAD);
	seg->reply_tails = part_at(seg, SEG_PART_REPLY_TAILS);
	seg->slot = part_at(seg, SEG_PART_SLOT);
	seg->worker_ctl = part_at(seg, SEG_PART_WORKER_CTL);
	seg->stats = part_at(seg, SEG_PART_STATS);
	seg->step_tail = part_at(seg, SEG_PART_STEP_TAIL);
	seg->reply_head = part_at(seg, SEG_PART_REPLY_HEAD);
	seg->flags = part_at(seg, SEG_PART_FLAGS);
	seg->comm = part_at(seg, SEG_PART_COMM);
}

/* Maps seg->fd as seg->hdr says. On failure what was mapped is left to seg_close(). */
static int map_all(struct seg *seg, bool writable, struct errbuf *err)
{
	int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ, r;

	seg->bytes = seg->hdr.bytes;
	seg->writable = writable;
	seg->base = mmap(NULL, seg->bytes, prot, MAP_SHARED, seg->fd, 0);
	if (seg->base == MAP_FAILED) {
		r = -errno;
		seg->base = NULL;
		if (r == -EPERM && writable)
			return err_set(err, r, EXIT_SOFTWARE_ERR,
				"cannot write to the segment: its one writer has sealed it");
		goto failed;
	}
	if (MIRROR) {
		r = map_mirror(seg, prot);
		if (r < 0)
			goto failed;
	}
	set_pointers(seg);
	return 0;
failed:
	return err_set(err, r, EXIT_OS_ERR, "cannot map a segment of %llu bytes: %s",
		(unsigned long long)seg->bytes, strerror(-r));
}

void seg_close(struct seg *seg)
{
	/* a seg that is all zero was never opened; its fd 0 is not ours */
	if (seg->hdr.magic && seg->fd >= 0)
		close(seg->fd);
	if (seg->mirror)
		munmap(seg->mirror, seg->mirror_bytes);
	if (seg->base)
		munmap(seg->base, seg->bytes);
	memset(seg, 0, sizeof(*seg));
	seg->fd = -1;
}

/* ---- create ---- */

/* A memfd out of the way of the numbers that the children get. */
static int open_memfd(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), high;

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	high = fcntl(fd, F_DUPFD_CLOEXEC, SEG_FD__END);
	if (high < 0)
		high = -errno;
	close(fd);
	return high;
}

static int write_all(int fd, const void *bytes, size_t n, uint64_t off)
{
	ssize_t done = pwrite(fd, bytes, n, (off_t)off);

	if (done < 0)
		return -errno;
	return (size_t)done == n ? 0 : -EIO;
}

static int fill_new(struct seg *seg, const struct conf *conf)
{
	int r;

	if (ftruncate(seg->fd, (off_t)seg->hdr.bytes) < 0)
		return -errno;
	if (conf) {
		r = write_all(seg->fd, conf, sizeof(*conf), seg->hdr.parts[SEG_PART_CONF].off);
		if (r < 0)
			return r;
	}
	r = write_all(seg->fd, &seg->hdr, sizeof(seg->hdr), 0);
	if (r < 0)
		return r;
	return fcntl(seg->fd, F_ADD_SEALS, SEALS_SIZE) < 0 ? -errno : 0;
}

int seg_create(struct seg *seg, enum seg_kind kind, uint32_t rank, const struct seg_geometry *g,
	const struct conf *conf, struct errbuf *err)
{
	bool mine = kind == SEG_COORD;
	int r = check_geometry(g, err);

	if (r < 0)
		return r;
	memset(seg, 0, sizeof(*seg));
	seg->hdr = (struct seg_hdr){
		.magic = SEG_MAGIC,
		.layout = layout_number(),
		.kind = kind,
		.rank = mine ? UINT32_MAX : rank,
		.pid = getpid(),
	};
	/* by field: the sum must not depend on padding */
	seg->hdr.geometry.generation = g->generation;
	seg->hdr.geometry.workers = g->workers;
	seg->hdr.geometry.step_ring_bytes = g->step_ring_bytes;
	seg->hdr.geometry.reply_ring_bytes = g->reply_ring_bytes;
	seg->hdr.geometry.comm_bytes = g->comm_bytes;
	seg->hdr.conf_sum = mine ? sum_bytes(conf, sizeof(*conf), 0) : 0;
	lay_out(&seg->hdr);
	seg->hdr.sum = hdr_sum(&seg->hdr);
	seg->fd = open_memfd(mine ? "heddle-coord" : "heddle-worker");
	r = seg->fd < 0 ? seg->fd : fill_new(seg, mine ? conf : NULL);
	if (r < 0) {
		(void)err_set(err, r, EXIT_OS_ERR, "cannot make a segment of %llu bytes: %s%s",
			(unsigned long long)seg->hdr.bytes, strerror(-r),
			r == -EFBIG ? " (ulimit -f: shared memory counts as files)" : "");
		goto failed;
	}
	r = map_all(seg, mine, err);
	if (r < 0)
		goto failed;
	if (mine && fcntl(seg->fd, F_ADD_SEALS, SEALS_TAKEN) < 0) {
		r = err_set(
			err, -errno, EXIT_OS_ERR, "cannot seal the segment: %s", strerror(errno));
		goto failed;
	}
	return 0;
failed:
	seg_close(seg);
	return r;
}

/* ---- attach ---- */

PRINTF_LIKE(2, 3)
static int bad(struct errbuf *err, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR, "bad segment: %s", text);
}

static int check_seals(int fd, enum seg_kind kind, struct errbuf *err)
{
	int have = fcntl(fd, F_GET_SEALS);
	int want = kind == SEG_COORD ? SEALS_SIZE | F_SEAL_FUTURE_WRITE : SEALS_SIZE;

	if (have < 0)
		return bad(err, "fd %d is not a memfd: %s", fd, strerror(errno));
	if ((have & want) != want)
		return bad(err, "it has seals %#x, of which %#x are missing", have, want & ~have);
	return 0;
}

static int check_parts(const struct seg_hdr *hdr, struct errbuf *err)
{
	struct seg_hdr right = *hdr;
	size_t i;

	lay_out(&right);
	for (i = 0; i < SEG_PART__COUNT; i++)
		if (hdr->parts[i].off != right.parts[i].off ||
			hdr->parts[i].bytes != right.parts[i].bytes)
			return bad(err,
				"part %s lies at %llu+%llu, this program expects it at %llu+%llu",
				part_names[i], (unsigned long long)hdr->parts[i].off,
				(unsigned long long)hdr->parts[i].bytes,
				(unsigned long long)right.parts[i].off,
				(unsigned long long)right.parts[i].bytes);
	if (hdr->bytes != right.bytes)
		return bad(err, "it says %llu bytes where its parts make %llu",
			(unsigned long long)hdr->bytes, (unsigned long long)right.bytes);
	return 0;
}

static int check_hdr(const struct seg_hdr *hdr, uint64_t file_bytes, enum seg_kind kind,
	uint32_t rank, struct errbuf *err)
{
	struct errbuf why;

	if (hdr->magic != SEG_MAGIC)
		return bad(err, "magic %#llx is not heddle's", (unsigned long long)hdr->magic);
	if (hdr->layout != layout_number())
		return bad(err, "layout %08x, this program's is %08x: install both from one build",
			hdr->layout, layout_number());
	if (hdr->sum != hdr_sum(hdr))
		return bad(err, "the header's checksum is wrong");
	if (hdr->kind != (uint32_t)kind)
		return bad(err, "kind %u instead of %u", hdr->kind, (unsigned)kind);
	if (kind == SEG_WORKER && hdr->rank != rank)
		return bad(err, "it belongs to worker %u, not %u", hdr->rank, rank);
	if (check_geometry(&hdr->geometry, &why) < 0)
		return bad(err, "%s", why.text);
	if (hdr->pid <= 0)
		return bad(err, "coordinator's pid %d", hdr->pid);
	if (hdr->bytes != file_bytes)
		return bad(err, "it says %llu bytes, the file has %llu",
			(unsigned long long)hdr->bytes, (unsigned long long)file_bytes);
	return check_parts(hdr, err);
}

int seg_attach(struct seg *seg, int fd, enum seg_kind kind, uint32_t rank, bool writable,
	struct errbuf *err)
{
	struct stat st;
	ssize_t n;
	int r = check_seals(fd, kind, err);

	if (r < 0)
		return r;
	memset(seg, 0, sizeof(*seg));
	if (fstat(fd, &st) < 0)
		return err_set(err, -errno, EXIT_OS_ERR, "fstat: %s", strerror(errno));
	n = pread(fd, &seg->hdr, sizeof(seg->hdr), 0);
	if (n != sizeof(seg->hdr)) {
		r = bad(err, "%lld bytes, too short for a header", (long long)st.st_size);
		goto failed;
	}
	r = check_hdr(&seg->hdr, (uint64_t)st.st_size, kind, rank, err);
	if (r < 0)
		goto failed;
	seg->fd = fd;
	r = map_all(seg, writable, err);
	if (r < 0)
		goto failed;
	if (seg->conf && sum_bytes(seg->conf, sizeof(*seg->conf), 0) != seg->hdr.conf_sum) {
		r = bad(err, "the configuration's checksum is wrong");
		goto failed;
	}
	if (writable && fcntl(fd, F_ADD_SEALS, SEALS_TAKEN) < 0) {
		r = err_set(
			err, -errno, EXIT_OS_ERR, "cannot seal the segment: %s", strerror(errno));
		goto failed;
	}
	return 0;
failed:
	seg->fd = -1; /* the caller's again */
	seg_close(seg);
	return r;
}
