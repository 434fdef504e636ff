#include "worker/ckpt/model_config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "worker/ckpt/model_config_hf.h"

/* A file that is larger than this is no config.json. */
#define CONFIG_BYTES_MAX (4 << 20)

/* What every reader of a key needs: the object, the file's name for messages, where to write. */
struct reader {
	const char *name;
	const char *prefix; /* "rope_scaling." for keys of that object, else "" */
	const json_t *obj;
	struct errbuf *err;
};

static const char *const layer_names[MODEL_LAYER__COUNT] = {"SWA", "CSA", "HCA"};

const char *model_layer_name(enum model_layer kind)
{
	return layer_names[kind];
}

uint32_t model_layer_count(const struct model_config *cfg, enum model_layer kind)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < cfg->layers; i++)
		n += cfg->layer[i] == kind;
	return n;
}

/* A value as it stands in the file, cut where it is long. */
static void show(const json_t *v, char *out, size_t cap)
{
	size_t n = json_dumpb(v, out, cap - 1, JSON_ENCODE_ANY | JSON_COMPACT);

	if (n == 0 || n > cap - 1) {
		snprintf(out, cap, "%s",
			json_is_array(v)    ? "a list"
			: json_is_object(v) ? "an object"
					    : "a long value");
		return;
	}
	out[n] = '\0';
}

/* Refuses a value: `key` is `v`, but `what`. */
static int refuse(const struct reader *r, const char *key, const json_t *v, const char *what)
{
	char text[96];

	if (!v)
		return err_set(r->err, -EINVAL, EXIT_CONFIG_ERR, "%s: %s%s is missing; %s", r->name,
			r->prefix, key, what);
	show(v, text, sizeof(text));
	return err_set(r->err, -EINVAL, EXIT_CONFIG_ERR, "%s: %s%s is %s; %s", r->name, r->prefix,
		key, text, what);
}

static int read_int(
	const struct reader *r, const char *key, uint32_t min, uint32_t max, uint32_t *ret)
{
	const json_t *v = json_object_get(r->obj, key);
	char what[96];
	json_int_t n;

	snprintf(what, sizeof(what), "it must be an integer from %u to %u", min, max);
	if (!json_is_integer(v))
		return refuse(r, key, v, what);
	n = json_integer_value(v);
	if (n < (json_int_t)min || n > (json_int_t)max)
		return refuse(r, key, v, what);
	*ret = (uint32_t)n;
	return 0;
}

static int read_real(const struct reader *r, const char *key, double min, double max, double *ret)
{
	const json_t *v = json_object_get(r->obj, key);
	char what[96];
	double x;

	snprintf(what, sizeof(what), "it must be a number from %g to %g", min, max);
	if (!json_is_number(v))
		return refuse(r, key, v, what);
	x = json_number_value(v);
	if (!(x >= min && x <= max))
		return refuse(r, key, v, what);
	*ret = x;
	return 0;
}

static int fixed_int(const struct reader *r, const char *key, int64_t value, bool required)
{
	const json_t *v = json_object_get(r->obj, key);
	char what[96];

	if ((!v || json_is_null(v)) && !required)
		return 0;
	snprintf(what, sizeof(what), "heddle computes %" PRId64 " only", value);
	if (!json_is_integer(v) || json_integer_value(v) != value)
		return refuse(r, key, v, what);
	return 0;
}

static int fixed_str(const struct reader *r, const char *key, const char *value, bool required)
{
	const json_t *v = json_object_get(r->obj, key);
	char what[96];

	if ((!v || json_is_null(v)) && !required)
		return 0;
	snprintf(what, sizeof(what), "heddle computes \"%s\" only", value);
	if (!json_is_string(v) || strcmp(json_string_value(v), value) != 0)
		return refuse(r, key, v, what);
	return 0;
}

static int fixed_bool(const struct reader *r, const char *key, bool value, bool required)
{
	const json_t *v = json_object_get(r->obj, key);

	if ((!v || json_is_null(v)) && !required)
		return 0;
	if (!json_is_boolean(v) || json_is_true(v) != value)
		return refuse(r, key, v,
			value ? "heddle computes true only" : "heddle computes false only");
	return 0;
}

/* Every key of model_config.def. model_type comes first there: it explains all the others. */
static int read_keys(const struct reader *r, struct model_config *cfg)
{
	int ret;

#define MODEL_INT(key, field, min, max, doc)                                                       \
	ret = read_int(r, key, min, max, &cfg->field);                                             \
	if (ret < 0)                                                                               \
		return ret;
#define MODEL_REAL(key, field, min, max, doc)                                                      \
	ret = read_real(r, key, min, max, &cfg->field);                                            \
	if (ret < 0)                                                                               \
		return ret;
#define MODEL_FIXED_INT(key, value, required)                                                      \
	ret = fixed_int(r, key, value, required);                                                  \
	if (ret < 0)                                                                               \
		return ret;
#define MODEL_FIXED_STR(key, value, required)                                                      \
	ret = fixed_str(r, key, value, required);                                                  \
	if (ret < 0)                                                                               \
		return ret;
#define MODEL_FIXED_BOOL(key, value, required)                                                     \
	ret = fixed_bool(r, key, value, required);                                                 \
	if (ret < 0)                                                                               \
		return ret;
#include "worker/ckpt/model_config.def"
	return 0;
}

/* compress_ratios: at least one a layer; what follows (MTP layers, a spare 0) is ignored. */
static int read_ratios(const struct reader *r, struct model_config *cfg)
{
	const json_t *v = json_object_get(r->obj, "compress_ratios");
	char key[48], what[96];

	if (!json_is_array(v))
		return refuse(
			r, "compress_ratios", v, "it must be a list of 0, 4 or 128, one a layer");
	if (json_array_size(v) < cfg->layers) {
		snprintf(what, sizeof(what), "it has %zu values for %u layers", json_array_size(v),
			cfg->layers);
		return refuse(r, "compress_ratios", v, what);
	}
	for (uint32_t i = 0; i < cfg->layers; i++) {
		const json_t *e = json_array_get(v, i);
		json_int_t ratio = json_is_integer(e) ? json_integer_value(e) : -1;

		if (ratio == 0) {
			cfg->layer[i] = MODEL_SWA;
		} else if (ratio == MODEL_CSA_RATIO) {
			cfg->layer[i] = MODEL_CSA;
		} else if (ratio == MODEL_HCA_RATIO) {
			cfg->layer[i] = MODEL_HCA;
		} else {
			snprintf(key, sizeof(key), "compress_ratios[%u]", i);
			return refuse(r, key, e, "heddle computes the ratios 0, 4 and 128 only");
		}
	}
	return 0;
}

/* rope_scaling: absent or default (no scaling), or YaRN without an attention temperature. */
static int read_yarn(const struct reader *top, struct model_config *cfg)
{
	const json_t *v = json_object_get(top->obj, "rope_scaling");
	struct reader r = {top->name, "rope_scaling.", v, top->err};
	const json_t *type, *factor;
	int ret;

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_object(v))
		return refuse(top, "rope_scaling", v, "it must be an object");
	type = json_object_get(v, "type");
	if (!type)
		type = json_object_get(v, "rope_type");
	if (!json_is_string(type))
		return refuse(&r, "type", type, "it must be \"yarn\"");
	if (strcmp(json_string_value(type), "default") == 0)
		return 0;
	if (strcmp(json_string_value(type), "yarn") != 0)
		return refuse(&r, "type", type, "heddle computes \"yarn\" only");
	factor = json_object_get(v, "attention_factor");
	if (factor && !json_is_null(factor) && json_number_value(factor) != 1)
		return refuse(&r, "attention_factor", factor,
			"the model uses no attention temperature: it must be 1");
	cfg->yarn = true;
	ret = read_real(&r, "factor", 1, 1e6, &cfg->yarn_factor);
	if (ret == 0)
		ret = read_real(&r, "beta_fast", 1e-3, 1e6, &cfg->yarn_beta_fast);
	if (ret == 0)
		ret = read_real(&r, "beta_slow", 1e-3, 1e6, &cfg->yarn_beta_slow);
	if (ret == 0)
		ret = read_int(
			&r, "original_max_position_embeddings", 1, INT32_MAX, &cfg->yarn_original);
	if (ret == 0 && cfg->yarn_beta_fast < cfg->yarn_beta_slow)
		ret = refuse(&r, "beta_fast", json_object_get(v, "beta_fast"),
			"it must not be less than beta_slow");
	return ret;
}

static int read_block(const struct reader *r, struct model_config *cfg)
{
	const json_t *v = json_object_get(r->obj, "weight_block_size");
	const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);

	if (json_array_size(v) != 2 || !json_is_integer(a) || !json_is_integer(b) ||
		json_integer_value(a) != 128 || json_integer_value(b) != 128)
		return refuse(r, "weight_block_size", v, "heddle computes [128, 128] only");
	cfg->fp8_block_rows = cfg->fp8_block_cols = 128;
	return 0;
}

static int read_quantization(const struct reader *top, struct model_config *cfg)
{
	const json_t *v = json_object_get(top->obj, "quantization_config");
	const json_t *expert = json_object_get(top->obj, "expert_dtype");
	struct reader r = {top->name, "quantization_config.", v, top->err};
	const json_t *fmt;
	int ret;

	cfg->fp8_block_rows = cfg->fp8_block_cols = 128;
	if (v && !json_is_null(v)) {
		if (!json_is_object(v))
			return refuse(top, "quantization_config", v, "it must be an object");
		if ((ret = fixed_str(&r, "quant_method", "fp8", true)) < 0 ||
			(ret = fixed_str(&r, "fmt", "e4m3", false)) < 0 ||
			(ret = read_block(&r, cfg)) < 0)
			return ret;
		fmt = json_object_get(v, "scale_fmt");
		if (fmt && !json_is_null(fmt)) {
			if ((ret = fixed_str(&r, "scale_fmt", "ue8m0", true)) < 0)
				return ret;
			cfg->fp8_ue8m0 = true;
		}
		cfg->fp8 = true;
		if (!expert)
			expert = json_object_get(v, "expert_dtype");
	}
	cfg->expert_type = cfg->fp8 ? MODEL_EXPERT_FP8 : MODEL_EXPERT_FLOAT;
	if (!expert || json_is_null(expert))
		return 0;
	if (!json_is_string(expert))
		return refuse(top, "expert_dtype", expert, "it must be \"fp4\" or \"fp8\"");
	if (strcmp(json_string_value(expert), "fp4") == 0) {
		if (!cfg->fp8)
			return refuse(top, "expert_dtype", expert,
				"it needs a quantization_config (quant_method \"fp8\")");
		cfg->expert_type = MODEL_EXPERT_FP4;
	} else if (strcmp(json_string_value(expert), "fp8") == 0 && cfg->fp8) {
		cfg->expert_type = MODEL_EXPERT_FP8;
	} else {
		return refuse(top, "expert_dtype", expert,
			"it must be \"fp4\" or \"fp8\", with a quantization_config");
	}
	return 0;
}

static int read_token(const struct reader *r, const struct model_config *cfg, const char *key,
	const json_t *v, uint32_t *ret)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= cfg->vocab)
		return refuse(r, key, v, "it must be a token id below vocab_size");
	*ret = (uint32_t)json_integer_value(v);
	return 0;
}

static int read_tokens(const struct reader *r, struct model_config *cfg)
{
	const json_t *v = json_object_get(r->obj, "eos_token_id");
	uint32_t id;
	int ret;

	cfg->bos = -1;
	if (json_is_array(v)) {
		if (json_array_size(v) > MODEL_EOS_MAX)
			return refuse(r, "eos_token_id", v, "at most 16 ids are supported");
		for (size_t i = 0; i < json_array_size(v); i++) {
			ret = read_token(r, cfg, "eos_token_id", json_array_get(v, i), &id);
			if (ret < 0)
				return ret;
			cfg->eos[cfg->eos_n++] = id;
		}
	} else if (v && !json_is_null(v)) {
		ret = read_token(r, cfg, "eos_token_id", v, &cfg->eos[0]);
		if (ret < 0)
			return ret;
		cfg->eos_n = 1;
	}
	v = json_object_get(r->obj, "bos_token_id");
	if (v && !json_is_null(v)) {
		ret = read_token(r, cfg, "bos_token_id", v, &id);
		if (ret < 0)
			return ret;
		cfg->bos = id;
	}
	return 0;
}

/* Rules that join several keys. */
static int check_joint(const struct reader *r, const struct model_config *cfg)
{
	char what[128];
	const json_t *obj = r->obj;

	if (cfg->heads % cfg->o_groups != 0) {
		snprintf(what, sizeof(what), "it must divide num_attention_heads (%u)", cfg->heads);
		return refuse(r, "o_groups", json_object_get(obj, "o_groups"), what);
	}
	if (cfg->experts_per_token > cfg->experts) {
		snprintf(what, sizeof(what), "there are only %u experts", cfg->experts);
		return refuse(r, "num_experts_per_tok", json_object_get(obj, "num_experts_per_tok"),
			what);
	}
	if (cfg->hash_layers > cfg->layers) {
		snprintf(what, sizeof(what), "there are only %u layers", cfg->layers);
		return refuse(r, "num_hash_layers", json_object_get(obj, "num_hash_layers"), what);
	}
	if (cfg->expert_type == MODEL_EXPERT_FP4) {
		snprintf(what, sizeof(what), "FP4 experts need a multiple of %d", MODEL_FP4_BLOCK);
		if (cfg->hidden % MODEL_FP4_BLOCK != 0)
			return refuse(r, "hidden_size", json_object_get(obj, "hidden_size"), what);
		if (cfg->inter % MODEL_FP4_BLOCK != 0)
			return refuse(r, "moe_intermediate_size",
				json_object_get(obj, "moe_intermediate_size"), what);
	}
	return 0;
}

int model_config_parse(const char *name, const void *bytes, size_t len,
	struct model_config *ret_cfg, struct errbuf *err)
{
	struct model_config cfg;
	struct reader r = {name, "", NULL, err};
	json_error_t jerr;
	json_t *root;
	int ret;

	if (len > CONFIG_BYTES_MAX)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: %zu bytes is no config.json (at most %d)", name, len,
			CONFIG_BYTES_MAX);
	root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &jerr);
	if (!root)
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s:%d: not valid JSON: %s", name,
			jerr.line, jerr.text);
	if (!json_is_object(root)) {
		json_decref(root);
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s: must be a JSON object", name);
	}
	memset(&cfg, 0, sizeof(cfg));
	r.obj = root;
	ret = model_config_adopt_hf(root);
	if (ret < 0)
		err_set(err, ret, EXIT_OS_ERR, "%s: no memory to read it", name);
	if (ret == 0)
		ret = read_keys(&r, &cfg);
	if (ret == 0)
		ret = read_ratios(&r, &cfg);
	if (ret == 0)
		ret = read_yarn(&r, &cfg);
	if (ret == 0)
		ret = read_quantization(&r, &cfg);
	if (ret == 0)
		ret = read_tokens(&r, &cfg);
	if (ret == 0)
		ret = check_joint(&r, &cfg);
	json_decref(root);
	if (ret == 0)
		*ret_cfg = cfg;
	return ret;
}
