#include "worker/ckpt/model_config_hf.h"

#include <errno.h>
#include <string.h>

static const struct {
	const char *type;
	int ratio;
} types[] = {
	{"sliding_attention", 0},
	{"compressed_sparse_attention", 4},
	{"heavily_compressed_attention", 128},
};

static int put(json_t *root, const char *key, json_t *value)
{
	return json_object_set_new(root, key, value) < 0 ? -ENOMEM : 0;
}

/* The ratio of a layer type: as compress_rates says, or the family's. */
static json_t *ratio_of(const json_t *rates, const char *type)
{
	json_t *rate = json_object_get(rates, type);

	if (rate)
		return json_incref(rate);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(type, types[i].type) == 0)
			return json_integer(types[i].ratio);
	return json_string(type); /* the reader refuses it by name */
}

static int adopt_ratios(json_t *root)
{
	const json_t *list = json_object_get(root, "layer_types");
	json_t *ratios;
	size_t i;
	json_t *type;

	if (json_object_get(root, "compress_ratios") || !json_is_array(list))
		return 0;
	ratios = json_array();
	json_array_foreach ((json_t *)list, i, type) {
		json_t *ratio = json_is_string(type)
					? ratio_of(json_object_get(root, "compress_rates"),
						  json_string_value(type))
					: json_null();

		if (json_array_append_new(ratios, ratio) < 0) {
			json_decref(ratios);
			return -ENOMEM;
		}
	}
	return put(root, "compress_ratios", ratios);
}

/* hash_moe layers come first; any other order has no released spelling and is left out. */
static int adopt_hash_layers(json_t *root)
{
	const json_t *list = json_object_get(root, "mlp_layer_types");
	json_int_t n = 0;
	size_t i;
	json_t *type;

	if (json_object_get(root, "num_hash_layers") || !json_is_array(list))
		return 0;
	json_array_foreach ((json_t *)list, i, type) {
		const char *name = json_string_value(type);

		if (!name || (strcmp(name, "moe") != 0 && strcmp(name, "hash_moe") != 0))
			return 0;
		if (name[0] == 'h' && (size_t)n++ != i)
			return 0;
	}
	return put(root, "num_hash_layers", json_integer(n));
}

static int adopt_rotary(json_t *root)
{
	double dim = json_number_value(json_object_get(root, "head_dim")) *
		     json_number_value(json_object_get(root, "partial_rotary_factor"));

	if (json_object_get(root, "qk_rope_head_dim") || !(dim >= 1 && dim <= 65536))
		return 0;
	return put(root, "qk_rope_head_dim", json_integer((json_int_t)dim));
}

/* rope_parameters: {"main": {...}, "compress": {...}} */
static int adopt_rope(json_t *root)
{
	json_t *all = json_object_get(root, "rope_parameters");
	json_t *main = json_object_get(all, "main"), *compress = json_object_get(all, "compress");
	json_t *base = json_object_get(main, "rope_theta");
	json_t *compress_base = json_object_get(compress, "rope_theta");
	int ret = 0;

	if (base && !json_object_get(root, "rope_theta"))
		ret = json_object_set(root, "rope_theta", base);
	if (ret == 0 && compress_base && !json_object_get(root, "compress_rope_theta"))
		ret = json_object_set(root, "compress_rope_theta", compress_base);
	if (ret == 0 && json_is_object(compress) && !json_object_get(root, "rope_scaling"))
		ret = json_object_set(root, "rope_scaling", compress);
	return ret < 0 ? -ENOMEM : 0;
}

int model_config_adopt_hf(json_t *root)
{
	int ret = adopt_ratios(root);

	if (ret == 0)
		ret = adopt_hash_layers(root);
	if (ret == 0)
		ret = adopt_rotary(root);
	if (ret == 0)
		ret = adopt_rope(root);
	return ret;
}
