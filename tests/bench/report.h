/*
 * report.h: what a bench measured, as a table for people and as JSON for programs.
 *
 *	struct report r;
 *	report_open(&r, "handoff", "Half round trips through shared memory");
 *	report_add(&r, &(struct report_row){.what = "empty, spinning", .value = 410, .unit = "ns",
 *		.beside = "raw spin", .beside_value = 160, .most = 3});
 *	return report_close(&r);
 *
 * Absolute times on a shared machine drift, so a row names what ran beside it in the same call, and
 * its target is a bound on the ratio of the two; a row without one is judged by its value. The JSON
 * goes to $HEDDLE_BENCH_DIR/NAME.json (make bench sets it), or nowhere. It is written when it is
 * whole: a bench that is stopped leaves the file as it was.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct report_row {
	const char *what;
	double value;
	const char *unit;
	const char *beside;  /* what it was compared with, or NULL */
	double beside_value; /* in the same unit */
	double ratio;        /* of the two, taken turn by turn; 0: value / beside_value */
	double least, most;  /* the target on the ratio (on the value without one); 0: none */
};

struct report {
	const char *name, *dir;
	FILE *json; /* to text; or NULL */
	char *text;
	size_t bytes;
	unsigned rows, missed;
	bool unwritten; /* JSON that was wanted */
};

/*
 * Prints the heading. `name` must outlive the report. A JSON file that cannot be made is a line on
 * stderr, and the table goes on; report_close() tells it.
 */
void report_open(struct report *r, const char *name, const char *title);

/* One line of the table and one object of the JSON. */
void report_add(struct report *r, const struct report_row *row);

/* The median of n values. */
double report_median(const double *values, size_t n);

/*
 * The median of the ratios values[i] / beside[i] of what was measured in turn: a turn in which the
 * machine was slow for both counts as any other.
 */
double report_paired(const double *values, const double *beside, size_t n);

/*
 * Ends both; the exit status of the bench: 0, or 74 (EX_IOERR) when the JSON or standard output
 * could not be written. A missed target is said, and is no failure.
 */
int report_close(struct report *r);
