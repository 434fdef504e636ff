/*
 * sha256.h: SHA-256 (FIPS 180-4), so that `heddle inspect --verify` can be compared with sha256sum
 * and with the hashes that model hubs publish. Not for secrets.
 */
#ifndef CLIENT_SHA256_H
#define CLIENT_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
	uint32_t h[8];
	uint64_t bytes;
	uint8_t block[64];
};

enum { SHA256_HEX = 65 };

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t n);
/* Lower-case hexadecimal; the state is used up. */
void sha256_hex(struct sha256 *s, char out[SHA256_HEX]);

#endif
