/*
 * model_files.h: what the coordinator itself reads of a checkpoint, once, at start and for
 * heddled -t: the name, the tokenizer, generation_config.json, and of config.json one number,
 * vocab_size, against which the ids of the others are checked. The weights, and the rest of
 * config.json, are the workers' (heddle-worker --check).
 */
#ifndef COORDINATOR_MODEL_FILES_H
#define COORDINATOR_MODEL_FILES_H

#include "coordinator/gendef.h"
#include "coordinator/param.h"
#include "coordinator/token.h"
#include "shm/conf_types.h"
#include "shm/util.h"

struct model_files {
	char name[CONF_STR_MAX]; /* model.name, or the directory's: valid UTF-8 */
	struct tokenizer *tok;   /* has every token of the chat format, and ids the model has */
	struct gendef gendef;    /* with at least one end token */
	struct params defaults;  /* of a request; see param_defaults() */
};

/*
 * Reads the files of conf->model_path. -errno with err filled, its exit code too: 66 for a file
 * that is not there, 65 for one that is damaged or does not fit the others, 78 for a name.
 */
int model_files_load(
	const struct conf *conf, struct model_files *ret_files, struct errbuf *err) MUST_CHECK;
void model_files_fini(struct model_files *m);

#endif
