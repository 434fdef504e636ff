#include "config.h"

#include "client/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *text_bytes(uint64_t bytes, char out[TEXT_SHORT])
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double x = (double)bytes / 1024;
	size_t u = 0;

	if (bytes < 1024) {
		snprintf(out, TEXT_SHORT, "%" PRIu64 " B", bytes);
		return out;
	}
	while (x >= 1023.95 && u + 1 < ARRAY_LEN(units)) { /* would print as 1024.0 */
		x /= 1024;
		u++;
	}
	snprintf(out, TEXT_SHORT, "%.1f %s", x, units[u]);
	return out;
}

const char *text_count(uint64_t n, char out[TEXT_SHORT])
{
	char digits[TEXT_SHORT];
	int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
	char *at = out;

	for (int i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			*at++ = ',';
		*at++ = digits[i];
	}
	*at = '\0';
	return out;
}

const char *text_seconds(double s, char out[TEXT_SHORT])
{
	if (!(s >= 0 && s < 1e15))
		snprintf(out, TEXT_SHORT, "-");
	else if (s < 0.0009995)
		snprintf(out, TEXT_SHORT, "%.0f us", s * 1e6);
	else if (s < 0.9995)
		snprintf(out, TEXT_SHORT, "%.3g ms", s * 1e3);
	else if (s < 119.5)
		snprintf(out, TEXT_SHORT, "%.3g s", s);
	else if (s < 7200)
		snprintf(out, TEXT_SHORT, "%d min %d s", (int)s / 60, (int)s % 60);
	else if (s < 2 * 86400)
		snprintf(out, TEXT_SHORT, "%d h %d min", (int)s / 3600, (int)s % 3600 / 60);
	else
		snprintf(out, TEXT_SHORT, "%.0f days", s / 86400);
	return out;
}

void text_table_init(struct text_table *t, uint32_t cols, uint32_t right)
{
	memset(t, 0, sizeof(*t));
	t->cols = MIN(cols, (uint32_t)TEXT_COLS_MAX);
	t->right = right;
}

void text_table_add(struct text_table *t, const char *fmt, ...)
{
	char **bigger;
	va_list ap;

	if (t->n == t->cap) {
		bigger = realloc(t->cells, (t->cap * 2 + 64) * sizeof(*bigger));
		if (!bigger) {
			t->failed = true;
			return;
		}
		t->cells = bigger;
		t->cap = t->cap * 2 + 64;
	}
	va_start(ap, fmt);
	if (vasprintf(&t->cells[t->n], fmt, ap) < 0)
		t->failed = true;
	else
		t->n++;
	va_end(ap);
}

/* Columns a terminal needs: bytes that begin a character. */
static int width(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

int text_table_print(struct text_table *t, FILE *out, int indent)
{
	int wide[TEXT_COLS_MAX] = {0}, ret = t->failed ? -ENOMEM : 0;

	for (size_t i = 0; i < t->n; i++)
		wide[i % t->cols] = MAX(wide[i % t->cols], width(t->cells[i]));
	for (size_t i = 0; i < t->n; i++) {
		uint32_t c = (uint32_t)(i % t->cols);
		int pad = wide[c] - width(t->cells[i]);
		bool right = t->right >> c & 1, last = c + 1 == t->cols;

		fprintf(out, "%*s%*s%s%*s", c == 0 ? indent : 2, "", right ? pad : 0, "",
			t->cells[i], right || last ? 0 : pad, "");
		if (last)
			fputc('\n', out);
		free(t->cells[i]);
	}
	free(t->cells);
	text_table_init(t, t->cols, t->right);
	return ret;
}

void text_put(FILE *out, const char *bytes, size_t n, bool terminal)
{
	size_t from = 0;

	for (size_t i = 0; terminal && i < n; i++) {
		unsigned char c = (unsigned char)bytes[i];

		if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t')
			continue;
		fwrite(bytes + from, 1, i - from, out);
		fputs("\xef\xbf\xbd", out);
		from = i + 1;
	}
	fwrite(bytes + from, 1, n - from, out);
}
