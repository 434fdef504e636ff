/*
 * verify.h: what a checkpoint really holds: every element widened by plain code of its own (none of
 * kernels/), to find the smallest and largest value of each tensor and count what is no number.
 */
#ifndef CLIENT_VERIFY_H
#define CLIENT_VERIFY_H

#include "worker/ckpt/ckpt.h"

struct verify_stats {
	uint64_t n;      /* elements */
	double min, max; /* of the finite ones; min > max: there are none */
	uint64_t nan, inf;
	uint64_t bad; /* scales that cannot be used, rows of expert ids that are not right */
};

/* One element as a number. `scale` is 1 without scales. */
double verify_value(enum ckpt_elem elem, const uint8_t *row, uint64_t col);
double verify_scale(enum ckpt_scale scale, const uint8_t *scales, uint64_t index);

/* Reads a tensor and its scales; -errno with err naming file and tensor. */
int verify_entry(const struct ckpt *ck, const struct ckpt_entry *e, struct verify_stats *ret_stats,
	struct errbuf *err) MUST_CHECK;
/* b into a, for tensors shown together. */
void verify_join(struct verify_stats *a, const struct verify_stats *b);

enum { VERIFY_HEX = 65 };

/* SHA-256 of a whole file of the checkpoint, in hexadecimal as sha256sum and model hubs print it.
 */
int verify_hash(
	const struct ckpt *ck, size_t file, char out[VERIFY_HEX], struct errbuf *err) MUST_CHECK;

#endif
