#include "config.h"
#include "coordinator/json_text.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A key printed into the output, remembered until its object ends, to find one that is there twice.
 */
struct key {
	size_t off, len;
};

struct scan {
	const char *p, *end;
	struct outbuf *out; /* NULL: only read past */
	const char *why;
	struct key *keys;
	size_t keys_len, keys_cap;
	int depth;
};

static void put(struct scan *s, const char *text)
{
	if (s->out)
		outbuf_puts(s->out, text);
}

static int bad(struct scan *s, const char *why)
{
	s->why = why;
	return -EINVAL;
}

static void skip_space(struct scan *s)
{
	while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
		s->p++;
}

static bool take(struct scan *s, char c)
{
	if (s->p >= s->end || *s->p != c)
		return false;
	s->p++;
	return true;
}

static int hex4(const char *p, const char *end)
{
	int v = 0;

	if (end - p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		char c = p[i];

		if (c >= '0' && c <= '9')
			v = v * 16 + (c - '0');
		else if (c >= 'a' && c <= 'f')
			v = v * 16 + (c - 'a' + 10);
		else if (c >= 'A' && c <= 'F')
			v = v * 16 + (c - 'A' + 10);
		else
			return -1;
	}
	return v;
}

static size_t utf8(unsigned c, char out[4])
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/* After \u: a character, of one or two units. */
static int read_unicode(struct scan *s, unsigned *ret)
{
	int high = hex4(s->p, s->end), low;

	if (high < 0)
		return bad(s, "a \\u without four hexadecimal digits");
	s->p += 4;
	*ret = (unsigned)high;
	if (high < 0xd800 || high > 0xdfff)
		return 0;
	if (high > 0xdbff || s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u')
		return bad(s, "half of a surrogate pair");
	low = hex4(s->p + 2, s->end);
	if (low < 0xdc00 || low > 0xdfff)
		return bad(s, "half of a surrogate pair");
	s->p += 6;
	*ret = 0x10000 + ((unsigned)(high - 0xd800) << 10) + (unsigned)(low - 0xdc00);
	return 0;
}

/* One character that had to be escaped in the input: as itself, or as Python escapes it. */
static void put_char(struct scan *s, unsigned c, bool decoded)
{
	static const char names[] = "\"\\\b\f\n\r\t", as[] = "\"\\bfnrt";
	const char *name = c && c < 0x80 ? strchr(names, (int)c) : NULL;
	char buf[8] = "\\";
	size_t n;

	if (!s->out)
		return;
	if (decoded || (!name && c >= 0x20)) {
		n = utf8(c, buf);
	} else if (name) {
		buf[1] = as[name - names];
		n = 2;
	} else {
		n = (size_t)snprintf(buf, sizeof(buf), "\\u%04x", c);
	}
	outbuf_add(s->out, buf, n);
}

static int read_escape(struct scan *s, bool decoded)
{
	static const char names[] = "\"\\/bfnrt", as[] = "\"\\/\b\f\n\r\t";
	const char *name;
	unsigned c;
	int r;

	if (s->p >= s->end || !*s->p)
		return bad(s, "a string that does not end");
	name = strchr(names, *s->p);
	if (name) {
		c = (unsigned)as[name - names];
		s->p++;
	} else {
		if (*s->p++ != 'u')
			return bad(s, "an unknown escape");
		r = read_unicode(s, &c);
		if (r < 0)
			return r;
	}
	put_char(s, c, decoded);
	return 0;
}

/* A string, quotes and all, or what it stands for. */
static int read_string(struct scan *s, bool decoded)
{
	const char *from;
	int r;

	if (!take(s, '"'))
		return bad(s, "a missing string");
	if (!decoded)
		put(s, "\"");
	for (;;) {
		for (from = s->p; s->p < s->end && *s->p != '"' && *s->p != '\\' &&
				  (unsigned char)*s->p >= 0x20;)
			s->p++;
		if (s->out)
			outbuf_add(s->out, from, (size_t)(s->p - from));
		if (s->p >= s->end)
			return bad(s, "a string that does not end");
		if (take(s, '"'))
			break;
		if (!take(s, '\\'))
			return bad(s, "a control character in a string");
		r = read_escape(s, decoded);
		if (r < 0)
			return r;
	}
	if (!decoded)
		put(s, "\"");
	return 0;
}

static size_t read_digits(struct scan *s)
{
	const char *from = s->p;

	while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
		s->p++;
	return (size_t)(s->p - from);
}

static int print_number(struct scan *s, const char *from, bool whole)
{
	size_t len = (size_t)(s->p - from);
	char *text, *stop, buf[JSON_DOUBLE_MAX];
	double v;

	if (whole) {
		/* Python has no negative zero among integers. */
		if (len == 2 && !memcmp(from, "-0", 2))
			put(s, "0");
		else
			outbuf_add(s->out, from, len);
		return 0;
	}
	text = strndup(from, len);
	if (!text)
		return -ENOMEM;
	v = strtod(text, &stop);
	free(text);
	if (isinf(v))
		return bad(s, "a number that is too large");
	json_format_double(v, buf);
	put(s, buf);
	return 0;
}

static int read_number(struct scan *s)
{
	const char *from = s->p;
	bool whole = true;

	(void)take(s, '-');
	if (take(s, '0')) {
		if (s->p < s->end && *s->p >= '0' && *s->p <= '9')
			return bad(s, "a number with a leading zero");
	} else if (!read_digits(s)) {
		return bad(s, "something that is not JSON");
	}
	if (take(s, '.')) {
		whole = false;
		if (!read_digits(s))
			return bad(s, "a number that ends in its point");
	}
	if (take(s, 'e') || take(s, 'E')) {
		whole = false;
		if (!take(s, '+'))
			(void)take(s, '-');
		if (!read_digits(s))
			return bad(s, "a number without its exponent");
	}
	return s->out ? print_number(s, from, whole) : 0;
}

static int read_word(struct scan *s)
{
	static const char *const words[] = {"true", "false", "null"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		size_t n = strlen(words[i]);

		if ((size_t)(s->end - s->p) >= n && !memcmp(s->p, words[i], n)) {
			s->p += n;
			put(s, words[i]);
			return 0;
		}
	}
	return bad(s, "something that is not JSON");
}

static int read_value(struct scan *s);

static int read_array(struct scan *s)
{
	int r;

	s->p++;
	put(s, "[");
	skip_space(s);
	if (!take(s, ']')) {
		for (;;) {
			r = read_value(s);
			if (r < 0)
				return r;
			skip_space(s);
			if (take(s, ']'))
				break;
			if (!take(s, ','))
				return bad(s, "an array without its ]");
			put(s, ", ");
		}
	}
	put(s, "]");
	return 0;
}

static int key_push(struct scan *s, size_t off)
{
	if (s->keys_len == s->keys_cap) {
		size_t cap = MAX(s->keys_cap * 2, (size_t)16);
		struct key *p = realloc(s->keys, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		s->keys = p;
		s->keys_cap = cap;
	}
	s->keys[s->keys_len++] = (struct key){off, s->out->len - off};
	return 0;
}

static int key_compare(const void *a, const void *b, void *text)
{
	const struct key *x = a, *y = b;

	if (x->len != y->len)
		return x->len < y->len ? -1 : 1;
	return memcmp((char *)text + x->off, (char *)text + y->off, x->len);
}

/* Forgets the keys from `from` on; -EINVAL where two were the same. */
static int keys_end(struct scan *s, size_t from)
{
	struct key *k = s->keys + from;
	size_t n = s->keys_len - from;

	s->keys_len = from;
	if (n < 2 || s->out->failed)
		return 0;
	qsort_r(k, n, sizeof(*k), key_compare, s->out->data);
	for (size_t i = 1; i < n; i++)
		if (!key_compare(&k[i - 1], &k[i], s->out->data))
			return bad(s, "a key that is there twice");
	return 0;
}

static int read_object(struct scan *s)
{
	size_t first = s->keys_len, off;
	int r;

	s->p++;
	put(s, "{");
	skip_space(s);
	if (take(s, '}')) {
		put(s, "}");
		return 0;
	}
	for (;;) {
		skip_space(s);
		off = s->out ? s->out->len : 0;
		r = read_string(s, false);
		if (r == 0 && s->out)
			r = key_push(s, off);
		if (r < 0)
			return r;
		skip_space(s);
		if (!take(s, ':'))
			return bad(s, "a key without its colon");
		put(s, ": ");
		r = read_value(s);
		if (r < 0)
			return r;
		skip_space(s);
		if (take(s, '}'))
			break;
		if (!take(s, ','))
			return bad(s, "an object without its }");
		put(s, ", ");
	}
	put(s, "}");
	return s->out ? keys_end(s, first) : 0;
}

static int read_value(struct scan *s)
{
	int r;

	skip_space(s);
	if (s->p >= s->end)
		return bad(s, "a missing value");
	if (s->depth == JSON_TEXT_DEPTH)
		return bad(s, "too many levels");
	s->depth++;
	if (*s->p == '{')
		r = read_object(s);
	else if (*s->p == '[')
		r = read_array(s);
	else if (*s->p == '"')
		r = read_string(s, false);
	else if (*s->p == '-' || (*s->p >= '0' && *s->p <= '9'))
		r = read_number(s);
	else
		r = read_word(s);
	s->depth--;
	return r;
}

char json_slice_kind(struct json_slice v)
{
	struct scan s = {.p = v.p, .end = v.p + v.len};

	skip_space(&s);
	return s.p < s.end ? *s.p : 0;
}

/* At an opening, a comma or the closing of a container; *at is where the last call stopped. */
static int next_in(struct scan *s, size_t at, char open, char close)
{
	skip_space(s);
	if (!at) {
		if (!take(s, open))
			return -EINVAL;
		skip_space(s);
		return !take(s, close);
	}
	if (take(s, close))
		return 0;
	return take(s, ',') ? 1 : -EINVAL;
}

static int take_value(struct scan *s, struct json_slice *ret)
{
	skip_space(s);
	ret->p = s->p;
	if (read_value(s) < 0)
		return -EINVAL;
	ret->len = (size_t)(s->p - ret->p);
	return 1;
}

int json_slice_item(struct json_slice array, size_t *at, struct json_slice *ret)
{
	struct scan s = {.p = array.p + *at, .end = array.p + array.len};
	int r = next_in(&s, *at, '[', ']');

	if (r == 1)
		r = take_value(&s, ret);
	if (r == 1)
		*at = (size_t)(s.p - array.p);
	return r;
}

int json_slice_pair(
	struct json_slice obj, size_t *at, struct json_slice *ret_key, struct json_slice *ret_value)
{
	struct scan s = {.p = obj.p + *at, .end = obj.p + obj.len};
	int r = next_in(&s, *at, '{', '}');

	if (r != 1)
		return r;
	skip_space(&s);
	if (s.p >= s.end || *s.p != '"' || take_value(&s, ret_key) < 0)
		return -EINVAL;
	skip_space(&s);
	if (!take(&s, ':'))
		return -EINVAL;
	r = take_value(&s, ret_value);
	if (r == 1)
		*at = (size_t)(s.p - obj.p);
	return r;
}

/* 1 if the key, a string as written, stands for `want`. */
static int key_is(struct json_slice key, const char *want)
{
	struct outbuf out = {0};
	size_t n = strlen(want);
	int r;

	if (!memchr(key.p, '\\', key.len))
		return key.len == n + 2 && !memcmp(key.p + 1, want, n);
	r = json_print_decoded(key, &out);
	if (r == 0)
		r = out.len == n && !memcmp(out.data, want, n);
	outbuf_fini(&out);
	return r;
}

int json_slice_member(struct json_slice obj, const char *key, struct json_slice *ret)
{
	struct json_slice k, v, found = {0};
	size_t at = 0;
	int r, is;

	while ((r = json_slice_pair(obj, &at, &k, &v)) == 1) {
		is = key_is(k, key);
		if (is < 0)
			return is;
		if (is)
			found = v;
	}
	if (r < 0)
		return r;
	if (!found.p)
		return -ENOENT;
	*ret = found;
	return 0;
}

int json_print_decoded(struct json_slice v, struct outbuf *out)
{
	struct scan s = {.p = v.p, .end = v.p + v.len, .out = out};
	size_t had = out->len;
	int r;

	skip_space(&s);
	r = read_string(&s, true);
	skip_space(&s);
	if (r == 0 && s.p != s.end)
		r = -EINVAL;
	if (r == 0 && out->failed)
		r = -ENOMEM;
	if (r < 0)
		out->len = had;
	return r;
}

int json_print_python(struct json_slice v, struct outbuf *out, const char **ret_why)
{
	struct scan s = {.p = v.p, .end = v.p + v.len, .out = out};
	size_t had = out->len;
	int r = read_value(&s);

	skip_space(&s);
	if (r == 0 && s.p != s.end)
		r = bad(&s, "something after its end");
	free(s.keys);
	if (r == 0 && out->failed)
		r = -ENOMEM;
	if (r < 0)
		out->len = had;
	if (r == -EINVAL && ret_why)
		*ret_why = s.why;
	return r;
}
