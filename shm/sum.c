#include "config.h"

#include "shm/sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES    (SUM_BLOCK / 8)
#define KEY_STEP (SUM_WHITENER << 1 | 1) /* what a lane's key grows by from block to block */

static uint64_t first_key(int lane)
{
	return (uint64_t)(lane + 1) * SUM_MULTIPLIER;
}

static uint64_t fold_lanes(const uint64_t lane[LANES], uint64_t seed)
{
	uint64_t sum = seed;

	for (int j = 0; j < LANES; j++)
		sum += sum_fold(lane[j] ^ SUM_WHITENER, first_key(j) | 1);
	return sum;
}

uint64_t sum_blocks_plain(const uint8_t *p, size_t blocks, uint64_t seed)
{
	uint64_t lane[LANES] = {0}, key[LANES];

	for (int j = 0; j < LANES; j++)
		key[j] = first_key(j);
	for (; blocks > 0; blocks--, p += SUM_BLOCK) {
		for (int j = 0; j < LANES; j++) {
			uint64_t x = sum_word(p + 8 * j) ^ key[j];

			lane[j] += (x & UINT32_MAX) * (x >> 32);
			key[j] += KEY_STEP;
		}
	}
	return fold_lanes(lane, seed);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static inline __m256i add_products(
	__m256i lanes, const uint8_t *p, __m256i key)
{
	__m256i x = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)p), key);

	return _mm256_add_epi64(lanes, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
}

__attribute__((target("avx2"))) static uint64_t sum_blocks_avx2(
	const uint8_t *p, size_t blocks, uint64_t seed)
{
	const __m256i step = _mm256_set1_epi64x((long long)KEY_STEP);
	__m256i a = _mm256_setzero_si256(), b = a, ka, kb;
	uint64_t lane[LANES];

	for (int j = 0; j < LANES; j++)
		lane[j] = first_key(j);
	ka = _mm256_loadu_si256((const __m256i *)lane);
	kb = _mm256_loadu_si256((const __m256i *)(lane + LANES / 2));
	for (; blocks > 0; blocks--, p += SUM_BLOCK) {
		a = add_products(a, p, ka);
		b = add_products(b, p + SUM_BLOCK / 2, kb);
		ka = _mm256_add_epi64(ka, step);
		kb = _mm256_add_epi64(kb, step);
	}
	_mm256_storeu_si256((__m256i *)lane, a);
	_mm256_storeu_si256((__m256i *)(lane + LANES / 2), b);
	return fold_lanes(lane, seed);
}
#endif

uint64_t sum_blocks(const uint8_t *p, size_t blocks, uint64_t seed)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2"))
		return sum_blocks_avx2(p, blocks, seed);
#endif
	return sum_blocks_plain(p, blocks, seed);
}
