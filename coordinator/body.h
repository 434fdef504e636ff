/*
 * body.h: a request's bytes to a JSON object, refusing what no honest client sends: nesting deeper
 * than BODY_DEPTH_MAX, more containers or values than memory should be given for, a key twice, NaN,
 * broken UTF-8. Pure; may run on any thread.
 *
 * Integers that do not fit 64 bits come out as reals (a tool's schema may hold one, and is printed
 * from the body's own bytes; a parameter that gets one refuses it by name). U+0000 inside a string
 * is allowed: use json_string_length().
 */
#ifndef COORDINATOR_BODY_H
#define COORDINATOR_BODY_H

#include <jansson.h>
#include <stddef.h>

#include "shm/util.h"

#define BODY_DEPTH_MAX      64
#define BODY_VALUES_MAX     (16u << 20) /* 16 Mi values are some 640 MB of json_t at worst */
#define BODY_CONTAINERS_MAX (1u << 20)  /* an empty array costs over 100 bytes for its 3 */

/* Returns 0, -EINVAL with err saying what and where, or -ENOMEM. */
int body_parse(const char *text, size_t len, json_t **ret_object, struct errbuf *err) MUST_CHECK;

#endif
