/*
 * stopstr.h: finds the first of several strings in text that arrives in pieces, and says at every
 * moment which text can no longer become part of one and may be sent. Used for `stop` (markup of
 * the model's own, "</think>" and calls, is dsml.h's). Bytes only: knows neither tokens nor UTF-8
 * (text and strings are both whole UTF-8, so a match never begins or ends inside a character).
 *
 * The set is an Aho-Corasick automaton: the state is the longest end of the text so far that begins
 * a string, so the text held back is never more and never less than it must be, and what is found
 * does not depend on how the text was cut into pieces. The match that ends first wins; of several
 * that end at the same byte, the longest.
 *
 * A set is immutable and may be used by many scans.
 */
#ifndef COORDINATOR_STOPSTR_H
#define COORDINATOR_STOPSTR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/outbuf.h"
#include "shm/util.h"

struct stop_string {
	const char *text;
	size_t len; /* >= 1 */
};

struct stop_set;

/* Copies the strings. n may be 0: a set that matches nothing. -EINVAL for an empty string. */
int stop_set_new(const struct stop_string *strings, size_t n, struct stop_set **ret_set) MUST_CHECK;
struct stop_set *stop_set_free(struct stop_set *set);

struct stop_scan {
	const struct stop_set *set;
	uint32_t state;
};
void stop_scan_init(struct stop_scan *scan, const struct stop_set *set);

/*
 * Takes text in and appends to out what is free to go. Returns the index of the string that was
 * found, or -1. When one was found, everything before it is in out, nothing of it is, and *ret_used
 * (may be NULL) is the count of bytes of `text` up to its end; the scan is then spent.
 * armed == false: strings that end in this text do not count (min_tokens), but one may begin here.
 */
int stop_scan_feed(struct stop_scan *scan, const char *text, size_t len, bool armed,
	struct outbuf *out, size_t *ret_used);
/* No more text: appends what was held back. */
void stop_scan_finish(struct stop_scan *scan, struct outbuf *out);
/* Bytes held back now. */
size_t stop_scan_held(const struct stop_scan *scan);

#endif
