#include "coordinator/token_regex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_MAX   65536
#define UNICODE_MIN   14 /* of PCRE2; what token_unicode.def starts from */
#define JIT_STACK_MAX (1 << 20)

/* The pattern being read and what it becomes. */
struct xlat {
	const char *p, *end;
	char *out;
	size_t len, cap;
	int depth; /* open groups */
	bool nomem;
	char what[64]; /* what is not supported */
};

static const struct uni_range {
	char category;
	uint32_t first, last;
} uni_ranges[] = {
#define UNI(category, first, last) {#category[0], first, last},
#include "coordinator/token_unicode.def"
#undef UNI
};

static void put(struct xlat *x, const char *s, size_t n)
{
	if (x->nomem)
		return;
	if (x->cap - x->len < n) {
		size_t cap = MAX(x->cap * 2, x->len + n + 256);
		char *out = realloc(x->out, cap);

		if (!out) {
			x->nomem = true;
			return;
		}
		x->out = out;
		x->cap = cap;
	}
	memcpy(x->out + x->len, s, n);
	x->len += n;
}

static void puts_(struct xlat *x, const char *s)
{
	put(x, s, strlen(s));
}

static int refuse(struct xlat *x, const char *what, size_t n)
{
	snprintf(x->what, sizeof(x->what), "%.*s", (int)MIN(n, sizeof(x->what) - 1), what);
	return -EINVAL;
}

/* Bytes of the character at p; the pattern comes from a JSON parser, so it is valid UTF-8. */
static size_t char_len(const struct xlat *x, const char *p)
{
	size_t n = 1;

	while (p + n < x->end && ((unsigned char)p[n] & 0xc0) == 0x80)
		n++;
	return n;
}

static bool is_ascii_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* One character that stands for itself, in a class or outside. */
static void put_literal(struct xlat *x, const char *c, size_t n)
{
	char hex[16];

	if (n > 1 || is_ascii_alnum(*c)) {
		put(x, c, n);
	} else {
		snprintf(hex, sizeof(hex), "\\x{%02x}", (unsigned)(unsigned char)*c);
		puts_(x, hex);
	}
}

/* The inside of a class: \p{X} and what Unicode added to it since PCRE2's version. */
static void put_category(struct xlat *x, char category)
{
	char buf[48];

	snprintf(buf, sizeof(buf), "\\p{%c}", category);
	puts_(x, buf);
	for (size_t i = 0; i < ARRAY_LEN(uni_ranges); i++) {
		const struct uni_range *r = &uni_ranges[i];

		if (r->category != category)
			continue;
		snprintf(buf, sizeof(buf), "\\x{%x}-\\x{%x}", r->first, r->last);
		puts_(x, buf);
	}
}

/*
 * The escape at p (its backslash). A shorthand is written as the inside of a class; outside of one
 * it gets its own brackets. ret_single says whether it was one character (which may begin a range).
 */
static int read_escape(struct xlat *x, bool in_class, bool *ret_single)
{
	const char *p = x->p;
	size_t left = (size_t)(x->end - p), n;
	char c;

	if (left < 2)
		return refuse(x, "a pattern that ends in a backslash", 34);
	c = p[1];
	*ret_single = true;
	if (c == 'r' || c == 'n' || c == 't') {
		puts_(x, c == 'r' ? "\\x{0d}" : c == 'n' ? "\\x{0a}" : "\\x{09}");
		x->p += 2;
		return 0;
	}
	n = char_len(x, p + 1);
	if (n > 1)
		return refuse(x, p, 1 + n);
	if (c == 's' || c == 'S') {
		if (c == 'S' && in_class)
			return refuse(x, "\\S inside [...]", 15);
		*ret_single = false;
		puts_(x, in_class ? "" : c == 's' ? "[" : "[^");
		puts_(x, "\\x{09}-\\x{0d}\\x{85}\\p{Z}");
		puts_(x, in_class ? "" : "]");
		x->p += 2;
		return 0;
	}
	if (c == 'p' || c == 'P') {
		if (left < 5 || p[2] != '{' || p[4] != '}' || !memchr("LMNPSZ", p[3], 6))
			return refuse(x, p, MIN(left, 12));
		if (c == 'P' && in_class)
			return refuse(x, "\\P{..} inside [...]", 19);
		*ret_single = false;
		puts_(x, in_class ? "" : c == 'p' ? "[" : "[^");
		put_category(x, p[3]);
		puts_(x, in_class ? "" : "]");
		x->p += 5;
		return 0;
	}
	if (is_ascii_alnum(c) || c < 0x20)
		return refuse(x, p, 2);
	put_literal(x, p + 1, 1);
	x->p += 2;
	return 0;
}

/* One member of a class. */
static int read_member(struct xlat *x, bool *ret_single)
{
	size_t n = char_len(x, x->p);

	if (*x->p == '\\')
		return read_escape(x, true, ret_single);
	if (*x->p == '[')
		return refuse(x, "a [ inside [...]", 16);
	if (*x->p == '&' && x->end - x->p > 1 && x->p[1] == '&')
		return refuse(x, "&& inside [...]", 15);
	put_literal(x, x->p, n);
	x->p += n;
	*ret_single = true;
	return 0;
}

static int read_class(struct xlat *x)
{
	bool single, first = true;
	int r;

	x->p++;
	puts_(x, "[");
	if (x->p < x->end && *x->p == '^') {
		puts_(x, "^");
		x->p++;
	}
	for (;; first = false) {
		if (x->p >= x->end)
			return refuse(x, "a [ without its ]", 17);
		if (*x->p == ']' && first)
			return refuse(x, "an empty [...]", 14);
		if (*x->p == ']')
			break;
		r = read_member(x, &single);
		if (r < 0)
			return r;
		/* A hyphen between two members is a range, before the ] a literal. */
		if (x->end - x->p < 2 || x->p[0] != '-' || x->p[1] == ']')
			continue;
		if (!single)
			return refuse(x, "a range that begins with a class", 32);
		puts_(x, "-");
		x->p++;
		r = read_member(x, &single);
		if (r < 0)
			return r;
		if (!single)
			return refuse(x, "a range that ends in a class", 28);
	}
	puts_(x, "]");
	x->p++;
	return 0;
}

static int read_group(struct xlat *x)
{
	static const char *const heads[] = {"(?:", "(?=", "(?!"};
	size_t left = (size_t)(x->end - x->p);

	x->depth++;
	if (left < 2 || x->p[1] != '?') {
		puts_(x, "(?:");
		x->p++;
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
		if (left >= 3 && !memcmp(x->p, heads[i], 3)) {
			puts_(x, heads[i]);
			x->p += 3;
			return 0;
		}
	}
	return refuse(x, x->p, MIN(left, 4));
}

/* {n} {n,} {n,m}. A ? or + after it means something else in Ruby than in PCRE2. */
static int read_repeat(struct xlat *x)
{
	const char *p = x->p + 1;
	size_t digits = 0, n;

	while (p < x->end && *p >= '0' && *p <= '9') {
		p++;
		digits++;
	}
	if (digits && p < x->end && *p == ',') {
		for (p++; p < x->end && *p >= '0' && *p <= '9';)
			p++;
	}
	if (!digits || p >= x->end || *p != '}')
		return refuse(x, x->p, MIN((size_t)(x->end - x->p), 8));
	p++;
	n = (size_t)(p - x->p);
	if (p < x->end && (*p == '?' || *p == '+' || *p == '*' || *p == '{'))
		return refuse(x, x->p, n + 1);
	put(x, x->p, n);
	x->p = p;
	return 0;
}

static int read_quantifier(struct xlat *x)
{
	if (*x->p == '{')
		return read_repeat(x);
	put(x, x->p++, 1);
	if (x->p < x->end && (*x->p == '?' || *x->p == '+'))
		put(x, x->p++, 1);
	if (x->p < x->end && (*x->p == '?' || *x->p == '+' || *x->p == '*' || *x->p == '{'))
		return refuse(x, "a quantifier of a quantifier", 28);
	return 0;
}

/* One atom, quantifier or operator. `atom` tells whether a quantifier may follow. */
static int read_item(struct xlat *x, bool *atom)
{
	bool single;
	size_t n;
	int r = 0;

	switch (*x->p) {
	case '\\':
		r = read_escape(x, false, &single);
		*atom = true;
		break;
	case '[':
		r = read_class(x);
		*atom = true;
		break;
	case '(':
		r = read_group(x);
		*atom = false;
		break;
	case ')':
		if (x->depth-- == 0)
			return refuse(x, "a ) without its (", 17);
		puts_(x, ")");
		x->p++;
		*atom = true;
		break;
	case '|':
		puts_(x, "|");
		x->p++;
		*atom = false;
		break;
	case '?':
	case '*':
	case '+':
	case '{':
		if (!*atom)
			return refuse(x, "a quantifier of nothing", 23);
		r = read_quantifier(x);
		*atom = false;
		break;
	case '.':
		puts_(x, "[^\\x{0a}]");
		x->p++;
		*atom = true;
		break;
	case '^':
	case '$':
		return refuse(x, x->p, 1);
	default:
		n = char_len(x, x->p);
		put_literal(x, x->p, n);
		x->p += n;
		*atom = true;
	}
	return r;
}

static int translate(struct xlat *x)
{
	bool atom = false;
	int r;

	while (x->p < x->end) {
		r = read_item(x, &atom);
		if (r < 0)
			return r;
	}
	if (x->depth)
		return refuse(x, "a ( without its )", 17);
	return x->nomem ? -ENOMEM : 0;
}

static int check_unicode(struct errbuf *err)
{
	char version[64] = "";

	if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) > (int)sizeof(version) ||
		pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version) < 0 ||
		atoi(version) < UNICODE_MIN)
		return err_set(err, -EINVAL, EXIT_OS_ERR,
			"libpcre2-8 knows Unicode %s; %d or later is needed (PCRE2 10.40)",
			*version ? version : "not at all", UNICODE_MIN);
	return 0;
}

static int compile(
	struct token_split *split, const struct xlat *x, const char *where, struct errbuf *err)
{
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	uint32_t empty = 0;
	PCRE2_SIZE at;
	int code, r = -ENOMEM;

	if (!context)
		return r;
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	split->code = pcre2_compile(
		(PCRE2_SPTR)x->out, x->len, PCRE2_UTF | PCRE2_UCP, &code, &at, context);
	if (!split->code) {
		PCRE2_UCHAR text[128] = "";

		pcre2_get_error_message(code, text, sizeof(text));
		r = err_set(err, code == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -EINVAL, EXIT_DATA_ERR,
			"%s: bad regular expression: %s", where, (const char *)text);
		goto out;
	}
	pcre2_pattern_info(split->code, PCRE2_INFO_MATCHEMPTY, &empty);
	if (empty) {
		token_regex_fini(split);
		r = err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: the regular expression can match nothing at all, which is not "
			"supported",
			where);
		goto out;
	}
	split->jit = pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE) == 0;
	r = 0;
out:
	pcre2_compile_context_free(context);
	return r;
}

int token_regex_compile(struct token_split *ret_split, const char *pattern, size_t len,
	const char *where, struct errbuf *err)
{
	struct xlat x = {.p = pattern, .end = pattern + len};
	struct token_split split = {0};
	int r;

	r = check_unicode(err);
	if (r < 0)
		return r;
	if (!len || len > PATTERN_MAX)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: the regular expression must have 1 to %d bytes", where, PATTERN_MAX);
	r = translate(&x);
	if (r == -EINVAL)
		err_set(err, r, EXIT_DATA_ERR,
			"%s: the regular expression uses '%s', which is not supported", where,
			x.what);
	if (r == 0)
		r = compile(&split, &x, where, err);
	free(x.out);
	if (r < 0)
		return r;
	*ret_split = split;
	return 0;
}

void token_regex_fini(struct token_split *split)
{
	pcre2_code_free(split->code);
	*split = (struct token_split){0};
}

int token_matcher_init(struct token_matcher *m)
{
	m->data = pcre2_match_data_create(1, NULL);
	m->context = pcre2_match_context_create(NULL);
	/* Without it compiled code has 32 KiB of the caller's stack; NULL is fine. */
	m->stack = pcre2_jit_stack_create(32768, JIT_STACK_MAX, NULL);
	if (!m->data || !m->context) {
		token_matcher_fini(m);
		return -ENOMEM;
	}
	pcre2_jit_stack_assign(m->context, NULL, m->stack);
	return 0;
}

void token_matcher_fini(struct token_matcher *m)
{
	pcre2_match_data_free(m->data);
	pcre2_match_context_free(m->context);
	pcre2_jit_stack_free(m->stack);
	*m = (struct token_matcher){0};
}

int token_regex_search(const struct token_split *split, struct token_matcher *m, const char *text,
	size_t len, size_t start, size_t *ret_start, size_t *ret_end)
{
	PCRE2_SPTR subject = (PCRE2_SPTR)text;
	const PCRE2_SIZE *ov;
	int rc = PCRE2_ERROR_JIT_STACKLIMIT;

	pcre2_set_match_limit(m->context, (uint32_t)MIN(1000000 + len * 64, UINT32_MAX));
	if (split->jit)
		rc = pcre2_jit_match(split->code, subject, len, start, 0, m->data, m->context);
	/* The interpreter keeps its frames on the heap and has no such limit. */
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(split->code, subject, len, start,
			PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->context);
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc == PCRE2_ERROR_NOMEMORY)
		return -ENOMEM;
	if (rc < 0)
		return -E2BIG;
	ov = pcre2_get_ovector_pointer(m->data);
	*ret_start = ov[0];
	*ret_end = ov[1];
	return 1;
}
