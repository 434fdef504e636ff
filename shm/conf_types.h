/*
 * struct conf: the effective configuration, expanded from etc/conf.def. The coordinator fills it
 * (coordinator/conf.c) and freezes it into the segment; workers only read it.
 *
 * It holds no pointers, so that it can be copied into shared memory as it is. Field names are
 * SECTION_KEY. CONF_AUTO in a number means the row's word ("auto", "model", ...) was given.
 */
#ifndef SHM_CONF_TYPES_H
#define SHM_CONF_TYPES_H

#include <stdint.h>

#define CONF_STR_MAX   1024
#define CONF_AUTO      INT64_MIN /* integers, sizes (bytes), times (ns) */
#define CONF_REAL_AUTO (-1.0)    /* reals; all of ours are >= 0 */

#include "etc/conf_choices.def"

/* enum conf_backend { CONF_BACKEND_AUTO, ... }: one enum for each list of choices */
#define X(name, suffix) CONF_LOAD_##suffix,
enum conf_load { CONF_LOAD(X) };
#undef X
#define X(name, suffix) CONF_BACKEND_##suffix,
enum conf_backend { CONF_BACKEND(X) };
#undef X
#define X(name, suffix) CONF_COLLECTIVE_##suffix,
enum conf_collective { CONF_COLLECTIVE(X) };
#undef X
#define X(name, suffix) CONF_INDEX_KEY_##suffix,
enum conf_index_key { CONF_INDEX_KEY(X) };
#undef X
#define X(name, suffix) CONF_STORE_##suffix,
enum conf_store { CONF_STORE(X) };
#undef X
#define X(name, suffix) CONF_KV_##suffix,
enum conf_kv { CONF_KV(X) };
#undef X
#define X(name, suffix) CONF_NUMERICS_##suffix,
enum conf_numerics { CONF_NUMERICS(X) };
#undef X
#define X(name, suffix) CONF_ACT_##suffix,
enum conf_act { CONF_ACT(X) };
#undef X
#define X(name, suffix) CONF_POLICY_##suffix,
enum conf_policy { CONF_POLICY(X) };
#undef X
#define X(name, suffix) CONF_LEVEL_##suffix,
enum conf_level { CONF_LEVEL(X) };
#undef X
#define X(name, suffix) CONF_FORMAT_##suffix,
enum conf_format { CONF_FORMAT(X) };
#undef X

struct conf {
#define CONF_SECTION(s, help)
#define CONF_STR(s, k, def, reload, help)                  char s##_##k[CONF_STR_MAX];
#define CONF_BOOL(s, k, def, reload, help)                 int64_t s##_##k;
#define CONF_ENUM(s, k, def, choices, reload, help)        int64_t s##_##k;
#define CONF_OCT(s, k, def, min, max, reload, help)        int64_t s##_##k;
#define CONF_INT(s, k, def, word, min, max, reload, help)  int64_t s##_##k;
#define CONF_SIZE(s, k, def, word, min, max, reload, help) int64_t s##_##k;
#define CONF_TIME(s, k, def, word, min, max, reload, help) int64_t s##_##k;
#define CONF_REAL(s, k, def, word, min, max, reload, help) double s##_##k;
#include "etc/conf.def"
#include "etc/conf_undef.def"
};

#endif
