/*
 * ckpt_files.h: the files of a checkpoint's directory and the tensors their headers name, before
 * anything is known about the model. Part of ckpt.c; nobody else includes it.
 */
#ifndef WORKER_CKPT_CKPT_FILES_H
#define WORKER_CKPT_CKPT_FILES_H

#include <stdbool.h>

#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/safetensors.h"

struct ckpt_name {
	const char *name; /* without a leading "model." */
	const struct st_tensor *tensor;
	uint32_t file;
	bool used; /* by ckpt.c, to count the rest */
};

struct ckpt_files {
	int dirfd;
	char *dir, *real, *blobs; /* blobs: of a Hugging Face cache, or NULL */
	struct ckpt_file *files;
	struct st_header *headers; /* one a file */
	size_t n;
	struct ckpt_name *names; /* sorted */
	size_t name_n;
};

/* Opens the directory. */
int ckpt_files_init(const char *dir, struct ckpt_files *f, struct errbuf *err) MUST_CHECK;
/* Reads a small file of the directory whole. The caller frees. */
int ckpt_files_read(struct ckpt_files *f, const char *name, size_t max_bytes, char **ret_bytes,
	size_t *ret_len, struct errbuf *err) MUST_CHECK;
/* Opens the shards, reads their headers, fills names. */
int ckpt_files_scan(struct ckpt_files *f, struct errbuf *err) MUST_CHECK;
struct ckpt_name *ckpt_files_find(const struct ckpt_files *f, const char *name);
/* Frees all but what *ck has taken over (set f->files to NULL then). */
void ckpt_files_fini(struct ckpt_files *f);

#endif
