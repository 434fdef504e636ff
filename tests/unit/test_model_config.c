/* config.json: what is accepted, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/model_config.h"

static int parse(const json_t *c, struct model_config *cfg, struct errbuf *err)
{
	char *text = json_dumps(c, 0);
	int ret;

	err->text[0] = '\0';
	ret = model_config_parse("x/config.json", text, strlen(text), cfg, err);
	free(text);
	return ret;
}

static void test_released_shape_is_read(void **state)
{
	struct fix_opts o = {.quantised = true};
	json_t *c = fix_config(&o);
	struct model_config cfg;
	struct errbuf err;

	(void)state;
	assert_int_equal(parse(c, &cfg, &err), 0);
	assert_int_equal(cfg.hidden, 160);
	assert_int_equal(cfg.layers, 4);
	assert_int_equal(cfg.layer[0], MODEL_SWA);
	assert_int_equal(cfg.layer[1], MODEL_CSA);
	assert_int_equal(cfg.layer[2], MODEL_HCA);
	assert_int_equal(model_layer_ratio(&cfg, 2), 128);
	assert_int_equal(model_layer_count(&cfg, MODEL_CSA), 2);
	assert_true(cfg.yarn);
	assert_float_equal(cfg.yarn_factor, 16, 0);
	assert_float_equal(cfg.rope_theta, 10000, 0);
	assert_true(cfg.fp8 && cfg.fp8_ue8m0);
	assert_int_equal(cfg.expert_type, MODEL_EXPERT_FP4);
	assert_int_equal(cfg.eos_n, 1);
	assert_int_equal(cfg.bos, 0);
	json_object_del(c, "quantization_config");
	json_object_del(c, "expert_dtype");
	json_object_set_new(c, "rope_scaling", json_null());
	json_object_set_new(c, "eos_token_id", json_pack("[i,i]", 3, 5));
	assert_int_equal(parse(c, &cfg, &err), 0);
	assert_false(cfg.yarn || cfg.fp8);
	assert_int_equal(cfg.expert_type, MODEL_EXPERT_FLOAT);
	assert_int_equal(cfg.eos_n, 2);
	assert_int_equal(cfg.eos[1], 5);
	json_decref(c);
}

static void test_bundled_model_is_read(void **state)
{
	const char *src = getenv("HEDDLE_SRCDIR");
	char path[512], *text;
	struct model_config cfg;
	struct errbuf err;
	size_t n;

	(void)state;
	if (!src) {
		print_message("HEDDLE_SRCDIR does not name the source tree\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/models/heddle-mini/config.json", src);
	text = fix_read_file(path, &n);
	assert_int_equal(model_config_parse(path, text, n, &cfg, &err), 0);
	assert_int_equal(cfg.hidden, 256);
	assert_int_equal(cfg.experts, 8);
	free(text);
}

/* The keys that transformers 5 writes in place of released ones. */
static json_t *hf_spelling(void)
{
	struct fix_opts o = {0};
	json_t *c = fix_config(&o);

	json_object_del(c, "compress_ratios");
	json_object_del(c, "num_hash_layers");
	json_object_del(c, "qk_rope_head_dim");
	json_object_del(c, "rope_scaling");
	json_object_del(c, "compress_rope_theta");
	json_object_set_new(c, "partial_rotary_factor", json_real(0.125));
	json_object_set_new(c, "layer_types",
		json_pack("[s,s,s,s]", "sliding_attention", "compressed_sparse_attention",
			"heavily_compressed_attention", "compressed_sparse_attention"));
	json_object_set_new(c, "compress_rates",
		json_pack("{s:i,s:i}", "compressed_sparse_attention", 4,
			"heavily_compressed_attention", 128));
	json_object_set_new(
		c, "mlp_layer_types", json_pack("[s,s,s,s]", "hash_moe", "hash_moe", "moe", "moe"));
	json_object_set_new(c, "rope_parameters",
		json_pack("{s:{s:s,s:i}, s:{s:s,s:i,s:i,s:i,s:i,s:i,s:f}}", "main", "rope_type",
			"default", "rope_theta", 10000, "compress", "rope_type", "yarn",
			"rope_theta", 160000, "factor", 16, "original_max_position_embeddings",
			65536, "beta_fast", 32, "beta_slow", 1, "attention_factor", 1.0));
	return c;
}

static void test_transformers_spelling_reads_the_same(void **state)
{
	struct fix_opts o = {0};
	json_t *released = fix_config(&o), *hf = hf_spelling();
	struct model_config a, b;
	struct errbuf err;

	(void)state;
	assert_int_equal(parse(released, &a, &err), 0);
	if (parse(hf, &b, &err) < 0)
		fail_msg("%s", err.text);
	assert_memory_equal(&a, &b, sizeof(a));
	json_object_set_new(json_object_get(hf, "compress_rates"), "compressed_sparse_attention",
		json_integer(8));
	assert_int_equal(parse(hf, &b, &err), -EINVAL);
	fix_assert_says(err.text, "compress_ratios[1] is 8", NULL);
	json_decref(hf);
	hf = hf_spelling();
	json_array_set_new(json_object_get(hf, "layer_types"), 2, json_string("linear_attention"));
	assert_int_equal(parse(hf, &b, &err), -EINVAL);
	fix_assert_says(err.text, "compress_ratios[2] is \"linear_attention\"", NULL);
	json_decref(hf);
	hf = hf_spelling();
	json_array_set_new(json_object_get(hf, "mlp_layer_types"), 0, json_string("moe"));
	assert_int_equal(parse(hf, &b, &err), -EINVAL);
	fix_assert_says(err.text, "num_hash_layers is missing", NULL);
	json_decref(hf);
	hf = hf_spelling();
	json_object_set_new(hf, "partial_rotary_factor", json_real(0.25));
	assert_int_equal(parse(hf, &b, &err), -EINVAL);
	fix_assert_says(err.text, "qk_rope_head_dim is 128", NULL);
	json_decref(hf);
	json_decref(released);
}

/* One change to a good configuration, and what the refusal must say besides the key. */
struct bad {
	const char *key, *value; /* value NULL: remove the key */
	const char *says;
};

static const struct bad bad[] = {
	{"model_type", "\"deepseek_v3\"", "\"deepseek_v3\"; heddle computes \"deepseek_v4\" only"},
	{"model_type", NULL, "missing"},
	{"head_dim", "256", "256; heddle computes 512 only"},
	{"qk_rope_head_dim", "32", "64 only"},
	{"index_head_dim", "64", "128 only"},
	{"hc_mult", "2", "4 only"},
	{"n_shared_experts", "2", "1 only"},
	{"num_key_value_heads", "8", "1 only"},
	{"norm_topk_prob", "false", "true only"},
	{"norm_topk_prob", "1", "true only"},
	{"tie_word_embeddings", "true", "false only"},
	{"attention_bias", "true", "false only"},
	{"scoring_func", "\"softmax\"", "\"sqrtsoftplus\" only"},
	{"scoring_func", "7", "\"sqrtsoftplus\" only"},
	{"topk_method", "\"greedy\"", "\"noaux_tc\" only"},
	{"hidden_act", "\"gelu\"", "\"silu\" only"},
	{"hidden_size", "0", "0; it must be an integer from 1"},
	{"hidden_size", "-1", "-1"},
	{"hidden_size", "9223372036854775807", "9223372036854775807"},
	{"hidden_size", "4096.5", "integer"},
	{"hidden_size", "\"4096\"", "integer"},
	{"hidden_size", "[1,2]", "[1,2]"},
	{"hidden_size", NULL, "missing"},
	{"hidden_size", "150", "multiple of 32"}, /* FP4 */
	{"moe_intermediate_size", "100", "multiple of 32"},
	{"moe_intermediate_size", "4294967296", "4294967296"},
	{"num_hidden_layers", "257", "from 1 to 256"},
	{"num_hidden_layers", "6", "5 values for 6 layers"},
	{"num_attention_heads", "1025", "from 1 to 1024"},
	{"o_groups", "3", "it must divide num_attention_heads (8)"},
	{"vocab_size", "4194305", "4194305"},
	{"num_experts_per_tok", "9", "there are only 8 experts"},
	{"num_experts_per_tok", "0", "0"},
	{"num_hash_layers", "5", "there are only 4 layers"},
	{"sliding_window", "0", "0"},
	{"index_topk", "65537", "65537"},
	{"rms_norm_eps", "0", "0; it must be a number"},
	{"hc_eps", "-1e-6", "number from"},
	{"swiglu_limit", "0", "number from"},
	{"swiglu_limit", "true", "true; it must be a number"},
	{"rope_theta", "1", "number from 2"},
	{"compress_ratios", NULL, "a list of 0, 4 or 128"},
	{"compress_ratios", "4", "a list of 0, 4 or 128"},
	{"compress_ratios", "[0,4,128]", "3 values for 4 layers"},
	{"compress_ratios", "[0,4,64,4]", "compress_ratios[2] is 64; heddle computes the ratios"},
	{"compress_ratios", "[0,4,\"128\",4]", "compress_ratios[2] is \"128\""},
	{"compress_ratios", "[0,4,4.0,4]", "compress_ratios[2]"},
	{"rope_scaling", "[]", "object"},
	{"rope_scaling", "{\"type\":\"linear\",\"factor\":4}",
		"type is \"linear\"; heddle computes"},
	{"rope_scaling", "{\"factor\":4}", "rope_scaling.type is missing"},
	{"rope_scaling", "{\"type\":\"yarn\"}", "rope_scaling.factor is missing"},
	{"rope_scaling",
		"{\"type\":\"yarn\",\"factor\":0.5,\"original_max_position_embeddings\":1,"
		"\"beta_fast\":32,\"beta_slow\":1}",
		"rope_scaling.factor is 0.5"},
	{"rope_scaling",
		"{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":0,"
		"\"beta_fast\":32,\"beta_slow\":1}",
		"rope_scaling.original_max_position_embeddings is 0"},
	{"rope_scaling",
		"{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":9,"
		"\"beta_fast\":1,\"beta_slow\":32}",
		"beta_fast is 1; it must not be less than beta_slow"},
	{"rope_scaling",
		"{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":9,"
		"\"beta_fast\":32,\"beta_slow\":1,\"attention_factor\":1.3}",
		"attention temperature"},
	{"quantization_config", "{\"quant_method\":\"gptq\"}", "quant_method is \"gptq\""},
	{"quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "fmt is \"e5m2\""},
	{"quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}",
		"weight_block_size is [64,128]; heddle computes [128, 128] only"},
	{"quantization_config", "{\"quant_method\":\"fp8\"}", "weight_block_size is missing"},
	{"quantization_config",
		"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"scale_fmt\":\"x\"}",
		"scale_fmt is \"x\""},
	{"quantization_config", NULL, "expert_dtype is \"fp4\"; it needs a quantization_config"},
	{"expert_dtype", "\"int4\"", "\"int4\"; it must be \"fp4\" or \"fp8\""},
	{"expert_dtype", "4", "4; it must be"},
	{"eos_token_id", "72", "72; it must be a token id below vocab_size"},
	{"eos_token_id", "[1,-1]", "-1; it must be a token id"},
	{"bos_token_id", "\"<s>\"", "token id"},
};

static void test_what_cannot_be_honoured_is_refused_by_name(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct model_config cfg, before;
	struct errbuf err;

	(void)state;
	memset(&cfg, 0xa5, sizeof(cfg));
	before = cfg;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		json_t *c = fix_config(&o);

		if (bad[i].value)
			json_object_set_new(
				c, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
		else
			json_object_del(c, bad[i].key);
		if (parse(c, &cfg, &err) != -EINVAL)
			fail_msg("%s = %s is not refused", bad[i].key,
				bad[i].value ? bad[i].value : "(none)");
		/* the name: of the key itself, or of the one the change made impossible */
		fix_assert_says(err.text, "x/config.json: ", bad[i].says, NULL);
		if (!strstr(bad[i].says, "layers") &&
			strcmp(bad[i].key, "quantization_config") != 0)
			fix_assert_says(err.text, bad[i].key, NULL);
		assert_int_equal(err.exit_code, EXIT_CONFIG_ERR);
		assert_memory_equal(&cfg, &before, sizeof(cfg));
		json_decref(c);
	}
}

static void test_what_is_not_json_is_refused_with_its_line(void **state)
{
	static const char *const texts[] = {"", "{", "[]", "{\"a\":1,\"a\":2}",
		"{\n\"a\": \xff\xfe}",
		"\x7f"
		"ELF",
		"nul"};
	struct model_config cfg;
	struct errbuf err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(
			model_config_parse("c.json", texts[i], strlen(texts[i]), &cfg, &err),
			-EINVAL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
		fix_assert_says(err.text, "c.json", NULL);
	}
	assert_int_equal(model_config_parse("c.json", "{\n\n!}", 5, &cfg, &err), -EINVAL);
	fix_assert_says(err.text, "c.json:3:", NULL);
	assert_int_equal(model_config_parse("c.json", "", 5 << 20, &cfg, &err), -EINVAL);
}

/* Flash and Pro, as far as splitting matters. */
static struct model_config shape(
	uint32_t heads, uint32_t groups, uint32_t vocab, uint32_t inter, uint32_t experts)
{
	return (struct model_config){.heads = heads,
		.o_groups = groups,
		.vocab = vocab,
		.inter = inter,
		.experts = experts};
}

static void test_world_names_every_violated_rule_at_once(void **state)
{
	struct model_config flash = shape(64, 8, 129280, 2048, 256);
	struct model_config pro = shape(128, 16, 129280, 3072, 384);
	struct errbuf err;

	(void)state;
	for (uint32_t w = 1; w <= 8; w *= 2)
		assert_int_equal(model_config_check_world(&flash, w, &err), 0);
	assert_int_equal(model_config_check_world(&pro, 16, &err), 0); /* 192 = 6 x 32 */
	assert_false(model_experts_by_id(&pro, 16));
	assert_int_equal(model_config_check_world(&flash, 3, &err), -EINVAL);
	fix_assert_says(err.text, "3 workers", "num_attention_heads 64", "o_groups 8",
		"vocab_size 129280", "n_routed_experts 256", "moe_intermediate_size 2048",
		"1, 2, 4 or 8 would do", NULL);
	assert_int_equal(err.exit_code, EXIT_CONFIG_ERR);
	assert_int_equal(model_config_check_world(&flash, 16, &err), -EINVAL);
	fix_assert_says(err.text, "o_groups 8", NULL);
	assert_null(strstr(err.text, "num_attention_heads"));
	assert_null(strstr(err.text, "n_routed_experts"));
	assert_int_equal(model_config_check_world(&flash, 0, &err), -EINVAL);
	assert_int_equal(model_config_check_world(&flash, 65, &err), -EINVAL);
	assert_int_equal(model_config_check_world(&flash, UINT32_MAX, &err), -EINVAL);
	/* every divisor there is: the list must fit the sentence */
	flash = shape(1024, 1024, 1024 * 45 * 77, 262144, 4096);
	assert_int_equal(model_config_check_world(&flash, 63, &err), -EINVAL);
	fix_assert_says(err.text, "1, 2, 4, 8, 16, 32 or 64 would do", NULL);
}

static void test_experts_go_by_id_where_a_slice_is_no_multiple_of_32(void **state)
{
	struct model_config c = shape(8, 8, 64, 96, 8);
	struct errbuf err;

	(void)state;
	assert_false(model_experts_by_id(&c, 1));
	assert_true(model_experts_by_id(&c, 2)); /* 48 */
	assert_true(model_experts_by_id(&c, 8)); /* 12 */
	assert_int_equal(model_config_check_world(&c, 8, &err), 0);
	c.experts = 6;
	assert_int_equal(model_config_check_world(&c, 8, &err), -EINVAL);
	fix_assert_says(err.text, "n_routed_experts 6", NULL);
	c.inter = 256; /* 8 x 32: by intermediate dimension, the number of experts is free */
	assert_int_equal(model_config_check_world(&c, 8, &err), 0);
}

/* Bytes changed at random: refused or read, never more. */
static void test_random_damage_never_breaks_the_parser(void **state)
{
	struct fix_opts o = {.quantised = true};
	json_t *c = fix_config(&o);
	char *text = json_dumps(c, 0), *copy = strdup(text);
	size_t n = strlen(text);
	uint64_t rng = fix_seed();
	struct model_config cfg;
	struct errbuf err;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		memcpy(copy, text, n);
		for (uint64_t k = fix_random(&rng) % 4 + 1; k > 0; k--)
			copy[fix_random(&rng) % n] =
				(char)("0123456789-.eE,:[]{}\"\x80 "[fix_random(&rng) % 23]);
		if (model_config_parse("c", copy, n, &cfg, &err) == 0)
			assert_true(cfg.layers >= 1 && cfg.layers <= MODEL_LAYERS_MAX &&
				    cfg.heads % cfg.o_groups == 0);
	}
	free(copy);
	free(text);
	json_decref(c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_released_shape_is_read),
		cmocka_unit_test(test_bundled_model_is_read),
		cmocka_unit_test(test_transformers_spelling_reads_the_same),
		cmocka_unit_test(test_what_cannot_be_honoured_is_refused_by_name),
		cmocka_unit_test(test_what_is_not_json_is_refused_with_its_line),
		cmocka_unit_test(test_world_names_every_violated_rule_at_once),
		cmocka_unit_test(test_experts_go_by_id_where_a_slice_is_no_multiple_of_32),
		cmocka_unit_test(test_random_damage_never_breaks_the_parser),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
