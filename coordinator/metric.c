#include "coordinator/metric.h"

#include <inttypes.h>
#include <string.h>

/* Upper edges in seconds, 0 ends a list; the habit of the field's servers, so dashboards fit. */
static const double EDGES_FIRST[METRIC_EDGES_MAX + 1] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
	0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
static const double EDGES_TOKEN[METRIC_EDGES_MAX + 1] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
	0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
static const double EDGES_REQUEST[METRIC_EDGES_MAX + 1] = {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15,
	20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

struct metric_row {
	const char *name, *type, *labels, *help;
	size_t offset; /* in struct metrics */
	const double *edges;
	const char *path;  /* in the engine's status, or in each object of ... */
	const char *array; /* ... this array there */
	const char *label; /* the member that names the object */
	const char *word;  /* the text at path is compared with it */
	double unit;
};

static const struct metric_row metric_rows[] = {
#define METRIC_COUNTER(field, n, l, h)                                                             \
	{.name = n,                                                                                \
		.type = "counter",                                                                 \
		.labels = l,                                                                       \
		.help = h,                                                                         \
		.offset = offsetof(struct metrics, field)},
#define METRIC_HISTOGRAM(field, n, e, h)                                                           \
	{.name = n,                                                                                \
		.type = "histogram",                                                               \
		.help = h,                                                                         \
		.offset = offsetof(struct metrics, field),                                         \
		.edges = e},
#define METRIC_STATUS(n, t, p, h) {.name = n, .type = t, .labels = "", .help = h, .path = p},
#define METRIC_EACH(n, t, a, l, p, u, m, h)                                                        \
	{.name = n,                                                                                \
		.type = t,                                                                         \
		.labels = m,                                                                       \
		.help = h,                                                                         \
		.path = p,                                                                         \
		.array = a,                                                                        \
		.label = l,                                                                        \
		.unit = u},
#define METRIC_IS(n, a, l, p, w, h)                                                                \
	{.name = n,                                                                                \
		.type = "gauge",                                                                   \
		.labels = "",                                                                      \
		.help = h,                                                                         \
		.path = p,                                                                         \
		.array = a,                                                                        \
		.label = l,                                                                        \
		.word = w},
#include "coordinator/metric.def"
};

static const struct {
	size_t offset;
	const double *edges;
} metric_histograms[METRIC_H__COUNT] = {
#define METRIC_COUNTER(...)
#define METRIC_HISTOGRAM(field, n, e, h) {offsetof(struct metrics, field), e},
#define METRIC_STATUS(...)
#define METRIC_EACH(...)
#define METRIC_IS(...)
#include "coordinator/metric.def"
};

void metric_observe(struct metrics *m, enum metric_histogram which, double value)
{
	struct histogram *h = (void *)((char *)m + metric_histograms[which].offset);
	const double *edges = metric_histograms[which].edges;
	size_t i = 0;

	while (edges[i] > 0 && value > edges[i])
		i++;
	h->buckets[i]++;
	h->sum += value;
}

static void metric_print_histogram(
	const struct metric_row *row, const struct histogram *h, struct outbuf *out)
{
	uint64_t total = 0;
	size_t i;

	for (i = 0; row->edges[i] > 0; i++) {
		total += h->buckets[i];
		outbuf_printf(out, "heddle_%s_bucket{le=\"%g\"} %" PRIu64 "\n", row->name,
			row->edges[i], total);
	}
	total += h->buckets[i];
	outbuf_printf(out, "heddle_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", row->name, total);
	outbuf_printf(out, "heddle_%s_sum %.9g\nheddle_%s_count %" PRIu64 "\n", row->name, h->sum,
		row->name, total);
}

/* What is at "a.b.c", or NULL. */
static const json_t *metric_find(const json_t *status, const char *path)
{
	char name[64];
	size_t len;

	while (status && *path) {
		len = strcspn(path, ".");
		if (len >= sizeof(name))
			return NULL;
		memcpy(name, path, len);
		name[len] = '\0';
		status = json_object_get(status, name);
		path += len + (path[len] == '.');
	}
	return status;
}

/* HELP and TYPE before the first row of a name. */
static void metric_head(const struct metric_row *row, const char **last, struct outbuf *out)
{
	if (strcmp(*last, row->name))
		outbuf_printf(out, "# HELP heddle_%s %s\n# TYPE heddle_%s %s\n", row->name,
			row->help, row->name, row->type);
	*last = row->name;
}

/* A label's value; those of ours hold nothing that would need an escape, a page class or a rank. */
static void metric_label(const json_t *v, struct outbuf *out)
{
	if (json_is_string(v))
		outbuf_puts(out, json_string_value(v));
	else
		outbuf_printf(out, "%lld", (long long)json_integer_value(v));
}

static void metric_print_each(
	const struct metric_row *row, const json_t *status, const char **last, struct outbuf *out)
{
	const json_t *one, *v;
	double number;
	size_t i;

	json_array_foreach (metric_find(status, row->array), i, one) {
		v = metric_find(one, row->path);
		if (row->word ? !json_is_string(v) : !json_is_number(v))
			continue;
		number = row->word ? !strcmp(json_string_value(v), row->word)
				   : json_number_value(v) * row->unit;
		metric_head(row, last, out);
		outbuf_printf(out, "heddle_%s{%s=\"", row->name, row->label);
		metric_label(json_object_get(one, row->label), out);
		outbuf_printf(out, "\"%s%s} %.17g\n", *row->labels ? "," : "", row->labels, number);
	}
}

static void metric_print_row(const struct metric_row *row, const struct metrics *m,
	const json_t *status, const char **last, struct outbuf *out)
{
	const void *field = (const char *)m + row->offset;
	const json_t *number;

	if (row->array) {
		metric_print_each(row, status, last, out);
	} else if (row->path) {
		number = metric_find(status, row->path);
		if (!json_is_number(number))
			return;
		metric_head(row, last, out);
		outbuf_printf(out, "heddle_%s %.17g\n", row->name, json_number_value(number));
	} else if (row->edges) {
		metric_head(row, last, out);
		metric_print_histogram(row, field, out);
	} else {
		metric_head(row, last, out);
		outbuf_printf(out, "heddle_%s%s%s%s %" PRIu64 "\n", row->name,
			*row->labels ? "{" : "", row->labels, *row->labels ? "}" : "",
			*(const uint64_t *)field);
	}
}

void metric_print(
	const struct metrics *m, const json_t *status, const char *version, struct outbuf *out)
{
	const char *last = "";
	size_t i;

	outbuf_puts(out, "# HELP heddle_build_info The version of heddle.\n"
			 "# TYPE heddle_build_info gauge\n");
	outbuf_printf(out, "heddle_build_info{version=\"%s\"} 1\n", version);
	for (i = 0; i < ARRAY_LEN(metric_rows); i++)
		metric_print_row(&metric_rows[i], m, status, &last, out);
}

void metric_each(void (*fn)(void *user, const char *name), void *user)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(metric_rows); i++)
		fn(user, metric_rows[i].name);
}
