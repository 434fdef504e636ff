/*
 * ckpt_fixture.h: made-up checkpoints for tests, written to a temporary directory. Names and shapes
 * are spelled out here from the model's description, on purpose not from worker/ckpt/tensor.def,
 * so that a mistake there is seen. Every function succeeds or fails the running test.
 */
#ifndef TESTS_UNIT_CKPT_FIXTURE_H
#define TESTS_UNIT_CKPT_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct ckpt; /* worker/ckpt/ckpt.h */

/* A tensor as it goes into a file. */
struct fix_tensor {
	char name[128];
	const char *dtype;
	uint32_t ndim;
	uint64_t shape[3];
	uint64_t bytes;
	uint8_t *data;
	uint32_t shard; /* which file it goes to */
};

struct fix_model {
	char dir[256]; /* temporary, removed by fix_free() */
	json_t *config;
	struct fix_tensor *tensors;
	size_t n, cap;
	uint32_t shards;
	uint64_t rng;
};

struct fix_opts {
	bool quantised;  /* FP8 linear layers and FP4 experts; else BF16 */
	bool f32_scales; /* FP8 scales as F32, named weight_scale_inv */
	bool prefix;     /* "model." before every name */
	bool hf_names;   /* transformers' names, experts packed (not with quantised) */
	bool i32_ids;
	uint32_t shards; /* 0: one model.safetensors without an index */
	uint64_t seed;
	/* Shape; 0: a default that covers odd sizes. */
	uint32_t hidden, heads, groups, o_lora, experts, inter, vocab;
};

/* A seed for this run, printed so that a failure can be repeated (HEDDLE_TEST_SEED sets it). */
uint64_t fix_seed(void);
uint64_t fix_random(uint64_t *state);

/* config.json of such a model: layers SWA, CSA, HCA, CSA; the first two route by hash. */
json_t *fix_config(const struct fix_opts *o);

struct fix_model *fix_new(const struct fix_opts *o);
/* Writes config.json and the shards with their index. May be called again after changes. */
void fix_write(struct fix_model *m);
/* Writes it and opens it as a checkpoint, which the caller closes. */
struct ckpt *fix_open(struct fix_model *m);
void fix_free(struct fix_model *m);
struct fix_tensor *fix_find(struct fix_model *m, const char *name);
/* Removes a tensor from the model; fix_write() then leaves it out. */
void fix_remove(struct fix_model *m, const char *name);
/* Adds one of random bytes. */
struct fix_tensor *fix_add(struct fix_model *m, const char *name, const char *dtype, uint32_t ndim,
	const uint64_t *shape);

/* "<dir>/<name>", in a static buffer. */
const char *fix_path(const struct fix_model *m, const char *name);
void fix_write_file(const char *path, const void *bytes, size_t n);
char *fix_read_file(const char *path, size_t *ret_n);

/* A new temporary directory; and its removal with the plain files in it. */
void fix_tempdir(char *out, size_t cap);
void fix_remove_dir(const char *dir);

/* Fails unless the error sentence contains each of the given parts (NULL ends them). */
void fix_assert_says(const char *text, ...) __attribute__((sentinel));

#endif
