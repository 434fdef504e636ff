/* http_harness_app.h: the application behind the harness; see http_harness.h for its routes. */
#ifndef TESTS_HTTP_HARNESS_APP_H
#define TESTS_HTTP_HARNESS_APP_H

#include "tests/unit/http_harness.h"

void app_on_request(void *user, struct http_exchange *x);
void app_on_refused(void *user, int status);
/* After loop_settle(). */
void app_free(struct harness *h);

#endif
