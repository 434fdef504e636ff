/* A whole .safetensors file as the input: length prefix, header; what is accepted must fit. */
#include <stdint.h>
#include <stdlib.h>

#include "worker/ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct st_header h;
	struct errbuf err;
	uint64_t len;

	if (size < ST_PREFIX_BYTES || st_json_len("fuzz", data, size, &len, &err) < 0 ||
		st_parse("fuzz", data + ST_PREFIX_BYTES, len, size, &h, &err) < 0)
		return 0;
	for (size_t i = 0; i < h.n; i++)
		if (h.tensors[i].offset > size || h.tensors[i].bytes > size - h.tensors[i].offset)
			abort();
	st_fini(&h);
	return 0;
}
