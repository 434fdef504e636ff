#include "coordinator/body.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What one pass over the bytes, before any memory is spent on them, says. */
struct body_survey {
	size_t depth, depth_max;
	size_t values, containers;
	size_t big_integers; /* integer lexemes outside int64 */
};

static bool body_number_char(char c)
{
	return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Length of the number lexeme at text; *ret_big: an integer that does not fit 64 bits. */
static size_t body_number(const char *text, size_t len, bool *ret_big)
{
	bool integer = true;
	size_t n = 0;

	while (n < len && body_number_char(text[n])) {
		if (n && (text[n] < '0' || text[n] > '9'))
			integer = false;
		n++;
	}
	*ret_big = false;
	if (integer && n >= 19) {
		errno = 0;
		(void)strtoll(text, NULL, 10); /* stops at the lexeme's end: the body ends in NUL */
		*ret_big = errno == ERANGE;
	}
	return n;
}

static size_t body_skip_string(const char *text, size_t len)
{
	size_t n = 1;

	while (n < len && text[n] != '"')
		n += text[n] == '\\' ? 2 : 1;
	return MIN(n + 1, len);
}

/*
 * Walks the text outside strings. With `copy` (room for len + 2 per big integer) the text goes
 * there, ".0" after every big integer; returns the length written.
 */
static size_t body_survey(const char *text, size_t len, struct body_survey *s, char *copy)
{
	size_t at = 0, out = 0, n;
	bool big;

	while (at < len) {
		big = false;
		n = 1;
		switch (text[at]) {
		case '"':
			n = body_skip_string(text + at, len - at);
			break;
		case '[':
		case '{':
			s->containers++;
			s->values++;
			s->depth++;
			s->depth_max = MAX(s->depth_max, s->depth);
			break;
		case ']':
		case '}':
			if (s->depth)
				s->depth--;
			break;
		case ',':
			s->values++;
			break;
		default:
			if (body_number_char(text[at]))
				n = body_number(text + at, len - at, &big);
			break;
		}
		s->big_integers += big;
		if (copy) {
			memcpy(copy + out, text + at, n);
			out += n;
			if (big) {
				memcpy(copy + out, ".0", 2);
				out += 2;
			}
		}
		at += n;
	}
	return out;
}

static int body_limits(const struct body_survey *s, struct errbuf *err)
{
	if (s->depth_max > BODY_DEPTH_MAX)
		return err_set(err, -EINVAL, 0, "the body nests %zu deep; %d levels are the limit",
			s->depth_max, BODY_DEPTH_MAX);
	if (s->values > BODY_VALUES_MAX)
		return err_set(err, -EINVAL, 0, "the body holds %zu values; %u are the limit",
			s->values, BODY_VALUES_MAX);
	if (s->containers > BODY_CONTAINERS_MAX)
		return err_set(err, -EINVAL, 0,
			"the body holds %zu arrays and objects; %u are the limit", s->containers,
			BODY_CONTAINERS_MAX);
	return 0;
}

int body_parse(const char *text, size_t len, json_t **ret_object, struct errbuf *err)
{
	struct body_survey survey = {0};
	json_error_t why;
	const char *nul;
	char *copy = NULL;
	json_t *root;
	int ret;

	if (!len)
		return err_set(err, -EINVAL, 0, "the body is empty; a JSON object is expected");
	/* never JSON; the parser would pass over one that follows a number or a word */
	nul = memchr(text, '\0', len);
	if (nul)
		return err_set(err, -EINVAL, 0, "the body is not valid JSON: byte %zu is NUL",
			(size_t)(nul - text));
	body_survey(text, len, &survey, NULL);
	ret = body_limits(&survey, err);
	if (ret)
		return ret;
	if (survey.big_integers) {
		copy = malloc(len + 2 * survey.big_integers + 1);
		if (!copy)
			return -ENOMEM;
		len = body_survey(text, len, &(struct body_survey){0}, copy);
		copy[len] = '\0';
		text = copy;
	}
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	free(copy);
	if (!root && json_error_code(&why) == json_error_out_of_memory)
		return -ENOMEM;
	if (!root)
		return err_set(err, -EINVAL, 0,
			"the body is not valid JSON: %s (line %d, column %d)", why.text, why.line,
			why.column);
	if (!json_is_object(root)) {
		json_decref(root);
		return err_set(err, -EINVAL, 0, "the body must be a JSON object");
	}
	*ret_object = root;
	return 0;
}
