#include "config.h"

#include "shm/stats.h"

void stats_read(const struct worker_stats *s, struct stats_row ret_rows[STATS__COUNT])
{
	struct stats_row *row = ret_rows;

#define X(field, text)                                                                             \
	*row++ = (struct stats_row){.name = #field, .doc = text, .value = stats_get(s, field)};
	STATS_COUNTERS(X)
#undef X
}
