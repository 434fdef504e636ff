/*
 * pages.h: accounting of the workers' pages. Which pages exist is what the workers reported; which
 * are free, and how many hold each, is known here alone. Page storage is the workers' business.
 *
 * Pure: no I/O, no clock, no knowledge of sequences. A page is held by references: a sequence's
 * table holds one, and whatever else wants it to stay (a snapshot, a shared prefix) holds another.
 *
 * A page whose last holder lets go is not free at once but in limbo until pages_settle(): steps
 * that are already in the ring may still read it, and the step now being built may too. The ring
 * runs steps in order, so a page that settled between two steps is safe to give away in the later
 * one.
 *
 *	granted ──unref to 0──▶ limbo ──pages_settle()──▶ free ──pages_grant()──▶ granted
 */
#ifndef COORDINATOR_PAGES_H
#define COORDINATOR_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/msg.h"
#include "shm/util.h"

struct pages_class {
	uint32_t tokens_per_page; /* positions a page covers; 0: class unused */
	uint32_t count;
	uint32_t free_n, limbo_n;
	uint32_t *free;  /* stack of ids, the lowest on top at first */
	uint32_t *limbo; /* ids in limbo */
	uint16_t *refs;  /* holders of each page */
};

struct pages {
	struct pages_class cls[PAGE__COUNT];
};

/*
 * All pages free. Returns 0, -ENOMEM, or -EINVAL with err when the counts make no sense (they come
 * from a worker). On failure nothing is held.
 */
int pages_init(struct pages *p, const struct page_class_info info[PAGE__COUNT],
	struct errbuf *err) MUST_CHECK;
void pages_fini(struct pages *p);

/* A free page with one holder, or -ENOSPC. */
int64_t pages_grant(struct pages *p, enum page_class cls) MUST_CHECK;

/* One more holder (pins the page), one less. A page that nobody holds is our own bug: asserted. */
void pages_ref(struct pages *p, enum page_class cls, uint32_t id);
void pages_unref(struct pages *p, enum page_class cls, uint32_t id);

/* Makes pages in limbo free: call between the building of two steps. */
void pages_settle(struct pages *p);

/* Pages that n positions from 0 need. 0 for an unused class. */
uint64_t pages_for(const struct pages *p, enum page_class cls, uint64_t positions);

/* True when every page of every class is free or in limbo (nothing runs, nothing is cached). */
bool pages_idle(const struct pages *p);

#endif
