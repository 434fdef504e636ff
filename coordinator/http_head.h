/*
 * http_head.h: what a head means: framing that can be read in one way only, a target that is a
 * path, headers as strings. The second half of http_parse.c, which is its only user.
 */
#ifndef COORDINATOR_HTTP_HEAD_H
#define COORDINATOR_HTTP_HEAD_H

#include "coordinator/http_parse.h"

/*
 * Refuses what is malformed, ambiguous or not ours to do. `well_formed`: the library's verdict; the
 * reasons it had are looked for first, so that they can be said better. 0 or -EBADMSG with p
 * refused.
 */
int http_head_check(
	struct http_parse *p, const struct http_wire_head *h, bool well_formed) MUST_CHECK;

/*
 * Cuts the head into p->req, in place: every slice becomes a string, the path is decoded.
 * p->headers has room for h->header_count. 0 or -EBADMSG with p refused.
 */
int http_head_take(struct http_parse *p, const struct http_wire_head *h) MUST_CHECK;

#endif
