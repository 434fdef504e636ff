/*
 * model_config_hf.h: config.json as transformers writes it (it renames and nests some keys) brought
 * into the released spelling. Part of model_config.c.
 */
#ifndef WORKER_CKPT_MODEL_CONFIG_HF_H
#define WORKER_CKPT_MODEL_CONFIG_HF_H

#include <jansson.h>

/*
 * Adds to root what is missing of compress_ratios, num_hash_layers, qk_rope_head_dim, rope_theta,
 * compress_rope_theta and rope_scaling, from layer_types and compress_rates, mlp_layer_types,
 * partial_rotary_factor and rope_parameters. Released keys win where both are there. What cannot be
 * understood is left out, so that the reader names the key it misses. 0 or -ENOMEM.
 */
int model_config_adopt_hf(json_t *root);

#endif
