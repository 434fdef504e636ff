/*
 * conf.h: heddle.ini and `-s` to a struct conf, by the one table etc/conf.def. Pure but for reading
 * the file: no logging, no clock. Used by heddled and by the client.
 */
#ifndef COORDINATOR_CONF_H
#define COORDINATOR_CONF_H

#include <stdbool.h>
#include <stdio.h>

#include "shm/conf_types.h"
#include "shm/util.h"

enum conf_reload { CONF_RELOAD_START, CONF_RELOAD_RELOAD };

/* Where each key's value came from, for `heddle config`. */
struct conf_origins; /* opaque, one per struct conf_set */

/* A configuration with the origin of each value. */
struct conf_set {
	struct conf conf;
	struct conf_origins *origins;
};

/* All defaults. Returns 0 or -ENOMEM. */
int conf_init(struct conf_set *set) MUST_CHECK;
void conf_fini(struct conf_set *set);

/*
 * Reads an ini file over the set. An unknown section or key, a bad or out-of-range value, a
 * duplicate or an overlong line is refused with file:line and the nearest valid name (-EINVAL, exit
 * code 78); a missing file is -ENOENT, exit code 66; what is no regular file (but /dev/null) 65.
 */
int conf_read_file(struct conf_set *set, const char *path, struct errbuf *err) MUST_CHECK;
/* The same from bytes; `name` stands for the file in messages. */
int conf_read(struct conf_set *set, const char *name, const char *text, size_t len,
	struct errbuf *err) MUST_CHECK;
/* One `SECTION.KEY=VALUE` of the command line. */
int conf_override(struct conf_set *set, const char *assignment, struct errbuf *err) MUST_CHECK;

/* Rules across keys (conf_check.c). Call after all sources are read. */
int conf_check(const struct conf_set *set, struct errbuf *err) MUST_CHECK;

/* Was the key set by a file or -s (not the default)? name is "section.key". */
bool conf_was_set(const struct conf_set *set, const char *name);

/* Value of one key as text, as a file would hold it. -ENOENT for an unknown name. */
int conf_value(const struct conf_set *set, const char *name, char *out, size_t cap) MUST_CHECK;

enum conf_dump { CONF_DUMP_INI, CONF_DUMP_MAN, CONF_DUMP_EFFECTIVE };
/* INI: the commented sample. MAN: heddle.ini(5). EFFECTIVE: values and where each came from. */
int conf_dump(const struct conf_set *set, enum conf_dump what, FILE *out) MUST_CHECK;

/* Calls fn for each key in table order. */
void conf_each(const struct conf_set *set,
	void (*fn)(void *user, const char *section, const char *key, const char *value,
		const char *origin),
	void *user);

/*
 * Takes over from `next` what may be reloaded and differs; calls `locked` for each key that differs
 * but needs a restart. Origins follow.
 */
void conf_reload(struct conf_set *set, const struct conf_set *next,
	void (*locked)(void *user, const char *name), void *user);

/* The values of `from` that may be reloaded, into a module's own copy. */
void conf_take_reloaded(struct conf *to, const struct conf *from);

#endif
