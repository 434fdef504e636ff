#include "coordinator/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 17 /* enough for any double */

/* digits * 10^exponent, digits without a point, as Python's repr(float) writes it. */
static void layout(bool negative, const char *digits, int exponent, char ret[JSON_DOUBLE_MAX])
{
	int n = (int)strlen(digits), point = n + exponent; /* digits before the point */
	const char *sign = negative ? "-" : "";
	size_t size = JSON_DOUBLE_MAX;

	if (point > 16 || point < -3)
		snprintf(ret, size, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "",
			digits + 1, point > 0 ? '+' : '-', abs(point - 1));
	else if (point <= 0)
		snprintf(ret, size, "%s0.%.*s%s", sign, -point, "000", digits);
	else if (point >= n)
		snprintf(ret, size, "%s%s%.*s.0", sign, digits, point - n, "0000000000000000");
	else
		snprintf(ret, size, "%s%.*s.%s", sign, point, digits, digits + point);
}

/* Adds one to the last digit; false where it carries out of the number. */
static bool next_digits(char *digits)
{
	for (size_t i = strlen(digits); i--;) {
		if (digits[i]++ < '9')
			return true;
		digits[i] = '0';
	}
	return false;
}

static bool same_value(const char *digits, int exponent, double v)
{
	char buf[48];

	snprintf(buf, sizeof(buf), "%se%d", digits, exponent);
	return strtod(buf, NULL) == v;
}

void json_format_double(double v, char ret[JSON_DOUBLE_MAX])
{
	char text[32], digits[DIGITS_MAX + 1];
	int exponent = 0;

	if (v == 0) {
		snprintf(ret, JSON_DOUBLE_MAX, "%s", signbit(v) ? "-0.0" : "0.0");
		return;
	}
	for (int n = 1; n <= DIGITS_MAX; n++) {
		snprintf(text, sizeof(text), "%.*e", n - 1, fabs(v));
		digits[0] = text[0];
		if (n > 1)
			memcpy(digits + 1, text + 2, (size_t)n - 1);
		digits[n] = 0;
		exponent = atoi(strchr(text, 'e') + 1) - (n - 1);
		if (same_value(digits, exponent, fabs(v)))
			break;
		if (n < DIGITS_MAX && next_digits(digits) && same_value(digits, exponent, fabs(v)))
			break;
	}
	for (size_t n = strlen(digits); n > 1 && digits[n - 1] == '0'; n--) {
		digits[n - 1] = 0;
		exponent++;
	}
	layout(v < 0, digits, exponent, ret);
}
