/* sup_impl.h: what sup.c (life) and sup_watch.c (watching) share. Nobody else includes it. */
#ifndef COORDINATOR_SUP_IMPL_H
#define COORDINATOR_SUP_IMPL_H

#include "coordinator/sup.h"

/* Takes the group down; what follows is decided when all are gone. */
void sup_down(struct sup *s, const char *why);
/* All workers are READY with these capacities (s->caps). */
void sup_all_ready(struct sup *s);
/* "worker N failed: ..." of the first whose slot says so: those after it may have failed for the
 * lack of it. False when none does. */
bool sup_first_failed(const struct sup *s, char *text, size_t cap);
/* One look at progress, by timer; returns when to look again. */
mono_ns_t sup_watch(struct sup *s, mono_ns_t now);
/* The sentence and code of the worker that refused, before the group was ever ready. */
int sup_refusal(const struct sup *s, char *text, size_t cap);

#endif
