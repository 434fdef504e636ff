/*
 * ckpt.h: an open checkpoint: config.json, the shards that model.safetensors.index.json names (or
 * the one model.safetensors), and where in them each tensor of the model lies, checked against the
 * configuration. It reads headers only; load.h reads the data.
 *
 * Single-threaded; no logging. Order: ckpt_open() or ckpt_open_dummy(), then plan_build() and
 * load_run(), then ckpt_close().
 */
#ifndef WORKER_CKPT_CKPT_H
#define WORKER_CKPT_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/model_config.h"
#include "worker/ckpt/tensor.h"

/* A range of a file. */
struct ckpt_view {
	uint32_t file; /* index into ckpt->files */
	uint64_t offset, bytes;
};

/* One tensor of the model; shape and type have been checked. */
struct ckpt_entry {
	enum tensor_kind kind;
	int layer, expert; /* -1: none */
	enum ckpt_elem elem;
	enum ckpt_scale scale;
	struct tensor_shape shape; /* elements: an FP4 matrix has twice as many columns as bytes */
	struct ckpt_view data;     /* row-major; no meaning in a dummy */
	struct ckpt_view scales;   /* row-major, one row a block of rows */
};

struct ckpt_file {
	char *name; /* within the directory */
	int fd;
	uint64_t bytes;
};

struct ckpt {
	char *dir;
	struct model_config cfg;
	bool dummy; /* no files: load_run() makes weights up */
	struct ckpt_file *files;
	size_t file_n;
	/* Model first, then layer by layer in tensor.def's order, experts by id within a kind. */
	struct ckpt_entry *entries;
	size_t entry_n;
	size_t extra_n; /* tensors in the files that the model does not use (MTP layers, say) */
	uint64_t extra_bytes;
};

/*
 * Reads dir/config.json only. -ENOENT (66) where there is none; else as model_config_parse().
 */
int ckpt_read_config(const char *dir, struct model_config *ret_cfg, struct errbuf *err) MUST_CHECK;

/*
 * Opens a checkpoint and checks the shape and type of every tensor. Opens only config.json and the
 * files the index names; a name with a path separator and a link that leaves the directory (other
 * than to the blobs of a Hugging Face cache) are refused. Errors name file and tensor, and what was
 * expected: -ENOENT (exit code 66) for a missing file or shard, -EINVAL (65, 78), -EACCES (77).
 */
int ckpt_open(const char *dir, struct ckpt **ret_ckpt, struct errbuf *err) MUST_CHECK;

/* The same tensors from config.json alone, in the types the configuration names. */
int ckpt_open_dummy(const char *dir, struct ckpt **ret_ckpt, struct errbuf *err) MUST_CHECK;
int ckpt_new_dummy(const struct model_config *cfg, struct ckpt **ret_ckpt) MUST_CHECK;

/* Closes; NULL is fine. Returns NULL. */
struct ckpt *ckpt_close(struct ckpt *ck);

/* Bytes of data and scales together. */
uint64_t ckpt_entry_bytes(const struct ckpt_entry *e);

/* Number of scale rows and columns of a whole tensor; 0 x 0 without scales. */
struct tensor_shape ckpt_scale_shape(const struct model_config *cfg, const struct ckpt_entry *e);

#endif
