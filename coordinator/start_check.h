/*
 * start_check.h: what the system can say about a configuration before anything is opened or made:
 * users, groups, addresses, directories. heddled begins with it, and so does heddled -t: both say
 * the same of the same configuration.
 */
#ifndef COORDINATOR_START_CHECK_H
#define COORDINATOR_START_CHECK_H

#include <stdbool.h>

#include "shm/conf_types.h"
#include "shm/util.h"

/*
 * listens: no sockets were handed over, so [listen] is used. -errno with err filled. Directories
 * below /run are not looked for: there the service manager makes them as it starts heddled.
 */
int start_check(const struct conf *conf, bool listens, struct errbuf *err) MUST_CHECK;

#endif
