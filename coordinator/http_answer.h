/* http_answer.h: what goes out: heads, errors, chunks (http.h's answering half), and its helpers.
 */
#ifndef COORDINATOR_HTTP_ANSWER_H
#define COORDINATOR_HTTP_ANSWER_H

#include "coordinator/conn.h"

/* The client's x-request-id if it is fit to be echoed and logged, else NULL. */
const char *http_answer_id(const struct http_request *req);

/* Queues the interim answer to Expect: 100-continue. */
int http_answer_continue(struct http_conn *c) MUST_CHECK;

#endif
