/*
 * checkpoint.h: a checkpoint of the released format for measurements: FP4 experts, FP8 projections,
 * BF16 and FP32 for the rest, in shards with an index, about 2 GB. Its weights are those of
 * load=dummy, so the model computes with sane numbers; it has no tokenizer.
 */
#pragma once

#include <stdbool.h>

#include "shm/util.h"

/*
 * Writes it to dir, which is made, unless a whole one lies there: then it is left as it is and
 * *ret_made is false. Files of another are not written over. -errno with err; what
 * was written until then is left.
 */
int checkpoint_make(const char *dir, bool *ret_made, struct errbuf *err) MUST_CHECK;
/* Whether a file by the name of one of its files lies in dir. */
bool checkpoint_begun(const char *dir);
/* All or a part of one; dir_too: and dir, if nothing else is in it. */
void checkpoint_remove(const char *dir, bool dir_too);
