/*
 * gendef.h: what the checkpoint's generation_config.json says about sampling and about the tokens
 * that end an answer. `do_sample` is ignored, as servers of the field do. Read once at start.
 */
#ifndef COORDINATOR_GENDEF_H
#define COORDINATOR_GENDEF_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

#define GENDEF_FILE    "generation_config.json"
#define GENDEF_EOS_MAX 64

struct gendef {
	json_t *json; /* the file's object; NULL when there is no file */
	uint32_t eos[GENDEF_EOS_MAX];
	size_t eos_n;
};

/*
 * Reads DIR/generation_config.json; a missing file is no error. `tokenizer_eos` (-1: none) ends an
 * answer besides what the file names, whose ids must be below `vocab`. Fails with -EINVAL (65) or
 * as file_read().
 */
int gendef_load(const char *dir, int64_t tokenizer_eos, uint32_t vocab, struct gendef *ret_def,
	struct errbuf *err) MUST_CHECK;
void gendef_fini(struct gendef *def);

#endif
