/*
 * A 64-bit checksum of bytes: against torn, stale and stray writes, not against an attacker. A
 * change of the bytes, or of the seed, is missed about once in 2^32.
 *
 * Whole blocks of 64 bytes go through eight lanes of their own (sum.c): each word is whitened by a
 * key of its place and the product of its halves is added up, which AVX2 does for four words at a
 * time. What is left, at most seven words and a bit, is multiplied by keys of its places, all at
 * once, so that a short record costs little more than one multiplication.
 */
#ifndef SHM_SUM_H
#define SHM_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SUM_MULTIPLIER 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio, odd */
#define SUM_WHITENER   0xd6e8feb86659fd93ull
#define SUM_BLOCK      64 /* bytes */

static inline uint64_t sum_word(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	return w;
}

/* Both halves of the 128-bit product. */
static inline uint64_t sum_fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Sum of whole blocks, blocks >= 1. */
uint64_t sum_blocks(const uint8_t *p, size_t blocks, uint64_t seed);
/* The same without vector instructions, to test the other against. */
uint64_t sum_blocks_plain(const uint8_t *p, size_t blocks, uint64_t seed);

/* Sum of n bytes. `seed` carries what belongs to the value but not to the bytes. */
static inline uint64_t sum_bytes(const void *bytes, size_t n, uint64_t seed)
{
	uint64_t sum = seed + n * SUM_MULTIPLIER, key = SUM_MULTIPLIER, last = 0;
	const uint8_t *p = bytes;

	if (n >= SUM_BLOCK) {
		sum = sum_blocks(p, n / SUM_BLOCK, sum);
		p += n - n % SUM_BLOCK;
		n %= SUM_BLOCK;
	}
	for (; n >= 8; n -= 8, p += 8, key += 2 * SUM_WHITENER)
		sum += sum_fold(sum_word(p) ^ SUM_WHITENER, key);
	if (n) {
		memcpy(&last, p, n);
		sum += sum_fold(last ^ SUM_WHITENER, key);
	}
	return sum_fold(sum ^ SUM_WHITENER, SUM_MULTIPLIER);
}

#endif
