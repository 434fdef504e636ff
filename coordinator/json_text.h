/*
 * JSON as text. A parsed json_t has lost how numbers were written, and integers over 64 bits
 * altogether; a prompt must show them as the client wrote them. This reads values where they stand
 * in the document and prints them as Python's json.dumps(ensure_ascii=False) does after json.loads,
 * which is the form the model was trained on.
 *
 * Pure; everything is bounds-checked and validated, so slices may come from anywhere. Numbers are
 * read with strtod: the program must run in a locale whose decimal point is ".".
 */
#ifndef COORDINATOR_JSON_TEXT_H
#define COORDINATOR_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "coordinator/outbuf.h"
#include "shm/util.h"

#define JSON_TEXT_DEPTH 512 /* nesting that is read; deeper is refused */

/* A value's bytes inside a document that outlives it. */
struct json_slice {
	const char *p;
	size_t len;
};

/*
 * The value of a member, the last of several of one name as in every parser here. -ENOENT: no such
 * member; -EINVAL: not an object, or broken before its end; -ENOMEM.
 */
int json_slice_member(struct json_slice obj, const char *key, struct json_slice *ret) MUST_CHECK;

/* One item or member after the other: 1 with it, 0 at the end, -EINVAL. *at starts at 0. */
int json_slice_item(struct json_slice array, size_t *at, struct json_slice *ret) MUST_CHECK;
int json_slice_pair(struct json_slice obj, size_t *at, struct json_slice *ret_key,
	struct json_slice *ret_value) MUST_CHECK;

/* First character of the value, after spaces: '{', '[', '"', 't', ... or 0 if there is none. */
char json_slice_kind(struct json_slice v);

/* Appends what a string value stands for (not printed again). -EINVAL if it is not a string. */
int json_print_decoded(struct json_slice v, struct outbuf *out) MUST_CHECK;

/*
 * Appends the value in Python's form: ", " and ": ", keys in their order, numbers as Python writes
 * them (1e-07, 0.1, integers of any size), escapes only where JSON demands them. Returns 0,
 * -ENOMEM, or -EINVAL with *ret_why naming what is wrong with it ("a key that is there twice").
 */
int json_print_python(struct json_slice v, struct outbuf *out, const char **ret_why) MUST_CHECK;

/*
 * The shortest digits that read back as v (finite), laid out as Python's repr: 0.1, 1e-07, 1e+16.
 * The nearest number of each length is tried, then the one above: below a power of two doubles lie
 * closer, so that the nearest may miss where that one hits (2 to the -44).
 */
#define JSON_DOUBLE_MAX 48
void json_format_double(double v, char ret[JSON_DOUBLE_MAX]);

#endif
