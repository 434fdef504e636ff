/*
 * metric.h: counters and histograms of requests, declared in metric.def, and their Prometheus text.
 * The loop's thread only.
 */
#ifndef COORDINATOR_METRIC_H
#define COORDINATOR_METRIC_H

#include <jansson.h>
#include <stdint.h>

#include "coordinator/outbuf.h"

#define METRIC_EDGES_MAX 24

/* Counts by bucket (not cumulative), the last for values above all edges. Zeroed it is empty. */
struct histogram {
	uint64_t buckets[METRIC_EDGES_MAX + 1];
	double sum;
};

struct metrics {
#define METRIC_COUNTER(field, ...)   uint64_t field;
#define METRIC_HISTOGRAM(field, ...) struct histogram field;
#define METRIC_STATUS(...)
#define METRIC_EACH(...)
#define METRIC_IS(...)
#include "coordinator/metric.def"
};

/* Fields of struct metrics that are histograms, for metric_observe(). */
enum metric_histogram {
#define METRIC_COUNTER(...)
#define METRIC_HISTOGRAM(field, ...) METRIC_H_##field,
#define METRIC_STATUS(...)
#define METRIC_EACH(...)
#define METRIC_IS(...)
#include "coordinator/metric.def"
	METRIC_H__COUNT
};

void metric_observe(struct metrics *m, enum metric_histogram which, double value);

/* Appends all rows as Prometheus text (version 0.0.4). status: the engine's members of /status. */
void metric_print(
	const struct metrics *m, const json_t *status, const char *version, struct outbuf *out);

/* Calls fn for each row's name, for tests. */
void metric_each(void (*fn)(void *user, const char *name), void *user);

#endif
