/* config.json as the input; what is accepted must keep the limits that arithmetic relies on. */
#include <stdint.h>
#include <stdlib.h>

#include "worker/ckpt/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct model_config cfg;
	struct errbuf err;

	if (model_config_parse("fuzz", data, size, &cfg, &err) < 0)
		return 0;
	for (uint32_t world = 0; world <= MODEL_WORLD_MAX + 1; world++)
		(void)!model_config_check_world(&cfg, world, &err);
	for (int layer = -1; layer < (int)cfg.layers; layer++) {
		for (int k = 0; k < TENSOR__COUNT; k++) {
			struct tensor_shape s;

			if (!tensor_exists(&cfg, (enum tensor_kind)k, layer))
				continue;
			s = tensor_shape(&cfg, (enum tensor_kind)k, layer);
			if (s.rows == 0 || s.cols == 0 || s.rows > (UINT64_C(1) << 59) / s.cols)
				abort();
		}
	}
	return 0;
}
