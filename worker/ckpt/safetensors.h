/*
 * safetensors.h: the header of a .safetensors file, as a function of bytes. No files, no logging,
 * no knowledge of the model; any thread.
 *
 *	0        8                    8+n                         file_bytes
 *	+--------+---------------------+---------------------------+
 *	| n (u64 | JSON: name ->       | data; offsets in the JSON |
 *	|  LE)   | dtype, shape, range | count from here           |
 *	+--------+---------------------+---------------------------+
 *
 * Order of calls: st_json_len() on the first 8 bytes, st_parse() on the n bytes that follow.
 */
#ifndef WORKER_CKPT_SAFETENSORS_H
#define WORKER_CKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

/* X(name in the file, C suffix, bytes an element) */
#define ST_DTYPES(X)                                                                               \
	X("F32", F32, 4)                                                                           \
	X("BF16", BF16, 2)                                                                         \
	X("F16", F16, 2)                                                                           \
	X("F8_E4M3", F8_E4M3, 1)                                                                   \
	X("F8_E8M0", F8_E8M0, 1)                                                                   \
	X("I8", I8, 1)                                                                             \
	X("U8", U8, 1)                                                                             \
	X("I64", I64, 8)                                                                           \
	X("I32", I32, 4)                                                                           \
	X("BOOL", BOOL, 1)                                                                         \
	X("F8_E5M2", F8_E5M2, 1)                                                                   \
	X("F64", F64, 8) X("I16", I16, 2) X("U16", U16, 2) X("U32", U32, 4) X("U64", U64, 8)

#define X(name, suffix, bytes) ST_##suffix,
enum st_dtype { ST_DTYPES(X) ST__COUNT };
#undef X

enum {
	ST_PREFIX_BYTES = 8,
	ST_NDIM_MAX = 8,
	ST_NAME_MAX = 255,
	ST_JSON_MAX = 100 * 1000 * 1000, /* what the format's own library accepts */
};

struct st_tensor {
	const char *name; /* in the header's arena; NUL-terminated, no control characters */
	enum st_dtype dtype;
	uint32_t ndim;
	uint64_t shape[ST_NDIM_MAX];
	uint64_t offset; /* in the file */
	uint64_t bytes;
};

struct st_header {
	struct st_tensor *tensors; /* by offset */
	size_t n;
	char *names;
};

const char *st_dtype_name(enum st_dtype dtype);
uint64_t st_dtype_bytes(enum st_dtype dtype);

/*
 * Length of the JSON, from the file's first 8 bytes. Refuses one that the file cannot hold or that
 * exceeds ST_JSON_MAX: -EINVAL, exit code 65. `name` stands for the file in messages here and
 * below.
 */
int st_json_len(const char *name, const uint8_t prefix[ST_PREFIX_BYTES], uint64_t file_bytes,
	uint64_t *ret_len, struct errbuf *err) MUST_CHECK;

/*
 * Parses the JSON. Refuses, naming file and tensor (-EINVAL, exit code 65): what is not JSON or not
 * UTF-8, a name twice, an unknown dtype, a shape whose size differs from its range, ranges that
 * overlap or leave holes, and a file shorter or longer than the header says (expected and real
 * size). -ENOMEM. The caller frees with st_fini().
 */
int st_parse(const char *name, const void *json, size_t len, uint64_t file_bytes,
	struct st_header *ret_header, struct errbuf *err) MUST_CHECK;
void st_fini(struct st_header *header);

#endif
