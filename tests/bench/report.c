#include "tests/bench/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "shm/util.h"
#include "tests/bench/bench.h"

void report_open(struct report *r, const char *name, const char *title)
{
	const char *dir = getenv("HEDDLE_BENCH_DIR");

	*r = (struct report){.name = name, .dir = dir && *dir ? dir : NULL};
	if (r->dir && access(r->dir, W_OK) < 0) {
		fprintf(stderr, "cannot write to %s: %s\n", r->dir, strerror(errno));
		r->dir = NULL;
		r->unwritten = true;
	}
	if (r->dir) {
		r->json = open_memstream(&r->text, &r->bytes);
		if (!r->json)
			bench_die("no memory for the report");
		fprintf(r->json, "{\"bench\": \"%s\", \"rows\": [", name);
	}
	printf("\n%s\n\n%-44s %12s %-9s %9s  %-10s\n", title, "", "value", "", "ratio", "target");
	fflush(stdout);
}

/* "<= 3", ">= 0.8" or nothing. */
static void say_target(const struct report_row *row, char *text, size_t size)
{
	if (row->most > 0)
		snprintf(text, size, "<= %g", row->most);
	else if (row->least > 0)
		snprintf(text, size, ">= %g", row->least);
	else
		*text = '\0';
}

static bool met(const struct report_row *row, double judged)
{
	return !(row->most > 0 && judged > row->most) && !(row->least > 0 && judged < row->least);
}

static void print_json(struct report *r, const struct report_row *row, double judged)
{
	fprintf(r->json, "%s\n\t{\"what\": \"%s\", \"value\": %.9g, \"unit\": \"%s\"",
		r->rows ? "," : "", row->what, row->value, row->unit);
	if (row->beside)
		fprintf(r->json, ", \"beside\": \"%s\", \"beside_value\": %.9g, \"ratio\": %.9g",
			row->beside, row->beside_value, judged);
	if (row->least > 0)
		fprintf(r->json, ", \"least\": %g", row->least);
	if (row->most > 0)
		fprintf(r->json, ", \"most\": %g", row->most);
	if (row->least > 0 || row->most > 0)
		fprintf(r->json, ", \"met\": %s", met(row, judged) ? "true" : "false");
	fputs("}", r->json);
}

void report_add(struct report *r, const struct report_row *row)
{
	double judged = row->value;
	char ratio[32] = "", target[32];

	if (row->beside)
		judged = row->ratio > 0 ? row->ratio : row->value / row->beside_value;
	say_target(row, target, sizeof(target));
	if (row->beside)
		snprintf(ratio, sizeof(ratio), "%.2f", judged);
	printf("%-44s %12.4g %-9s %9s  %-10s%s%s%s\n", row->what, row->value, row->unit, ratio,
		target, met(row, judged) ? "" : " MISSED", row->beside ? "  of " : "",
		row->beside ? row->beside : "");
	fflush(stdout);
	if (r->json)
		print_json(r, row, judged);
	r->rows++;
	r->missed += !met(row, judged);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double report_paired(const double *values, const double *beside, size_t n)
{
	double *ratio = bench_alloc(n * sizeof(*ratio)), median;

	for (size_t i = 0; i < n; i++)
		ratio[i] = values[i] / (beside ? beside[i] : 1);
	qsort(ratio, n, sizeof(*ratio), compare);
	median = ratio[n / 2];
	free(ratio);
	return median;
}

double report_median(const double *values, size_t n)
{
	return report_paired(values, NULL, n);
}

/* Under another name first: there is never half a file of the right one. */
static bool write_json(const struct report *r)
{
	char path[4096], part[4104];
	FILE *f;
	bool ok;

	snprintf(path, sizeof(path), "%s/%s.json", r->dir, r->name);
	snprintf(part, sizeof(part), "%s.part", path);
	f = fopen(part, "we");
	ok = f && fwrite(r->text, r->bytes, 1, f) == 1;
	ok = f && fclose(f) == 0 && ok && rename(part, path) == 0;
	if (ok)
		return true;
	fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
	(void)unlink(part);
	return false;
}

int report_close(struct report *r)
{
	if (r->json) {
		fputs("\n]}\n", r->json);
		if (fclose(r->json) != 0)
			bench_die("no memory for the report");
		r->json = NULL;
		r->unwritten = !write_json(r);
		free(r->text);
		r->text = NULL;
	}
	if (r->missed)
		printf("%u of %u rows miss their target\n", r->missed, r->rows);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "cannot write the table to standard output\n");
		return EX_IOERR;
	}
	return r->unwritten ? EX_IOERR : 0;
}
