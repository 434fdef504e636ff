#include "coordinator/token_impl.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Length of the character that begins with b; 0 for a byte that begins none. */
static unsigned lead_len(uint8_t b)
{
	if (b < 0x80)
		return 1;
	if (b >= 0xc2 && b <= 0xdf)
		return 2;
	if (b >= 0xe0 && b <= 0xef)
		return 3;
	return b >= 0xf0 && b <= 0xf4 ? 4 : 0;
}

/* Whether b may follow the n bytes at held: no overlong forms, no surrogates, <= U+10FFFF. */
static bool may_follow(const uint8_t *held, unsigned n, uint8_t b)
{
	uint8_t low = 0x80, high = 0xbf;

	if (n == 1) {
		if (held[0] == 0xe0)
			low = 0xa0;
		else if (held[0] == 0xed)
			high = 0x9f;
		else if (held[0] == 0xf0)
			low = 0x90;
		else if (held[0] == 0xf4)
			high = 0x8f;
	}
	return b >= low && b <= high;
}

bool token_utf8_valid(const char *text, size_t len)
{
	const uint8_t *p = (const uint8_t *)text;
	uint64_t w;

	for (size_t i = 0; i < len;) {
		unsigned n;

		if (len - i >= 8 && (memcpy(&w, p + i, 8), !(w & 0x8080808080808080u))) {
			i += 8;
			continue;
		}
		n = lead_len(p[i]);
		if (!n || n > len - i)
			return false;
		for (unsigned k = 1; k < n; k++)
			if (!may_follow(p + i, k, p[i + k]))
				return false;
		i += n;
	}
	return true;
}

size_t token_utf8_feed(
	uint8_t held[8], uint32_t *held_len, const char *bytes, size_t len, char *ret_out)
{
	size_t out = 0;

	for (size_t i = 0; i < len;) {
		uint8_t b = (uint8_t)bytes[i];

		if (*held_len && !may_follow(held, *held_len, b)) {
			/* What is held is broken; b is looked at again as a first byte. */
			memcpy(ret_out + out, REPLACEMENT, 3);
			out += 3;
			*held_len = 0;
			continue;
		}
		i++;
		if (!*held_len && !lead_len(b)) {
			memcpy(ret_out + out, REPLACEMENT, 3);
			out += 3;
			continue;
		}
		held[(*held_len)++] = b;
		if (*held_len == lead_len(held[0])) {
			memcpy(ret_out + out, held, *held_len);
			out += *held_len;
			*held_len = 0;
		}
	}
	return out;
}

char *tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, size_t n,
	bool skip_special, size_t *ret_len)
{
	size_t cap = 4, len = 0;
	uint8_t held[8];
	uint32_t held_len = 0;
	char *out;

	for (size_t i = 0; i < n; i++)
		cap += ids[i] < tok->vocab ? 3 * (size_t)tok->entries[ids[i]].len : 0;
	out = malloc(cap);
	if (!out)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		const char *bytes;
		size_t bytes_len;

		bytes = tokenizer_token_bytes(tok, ids[i], &bytes_len);
		if (bytes && !(skip_special && tokenizer_is_special(tok, ids[i])))
			len += token_utf8_feed(held, &held_len, bytes, bytes_len, out + len);
	}
	if (held_len) {
		memcpy(out + len, REPLACEMENT, 3);
		len += 3;
	}
	out[len] = 0;
	*ret_len = len;
	return out;
}

void token_stream_init(struct token_stream *st, const struct tokenizer *tok, bool skip_special)
{
	*st = (struct token_stream){.tok = tok, .skip_special = skip_special};
}

static int reserve(struct token_stream *st, size_t cap)
{
	char *p;

	if (st->out_cap >= cap)
		return 0;
	p = realloc(st->out, cap);
	if (!p)
		return -ENOMEM;
	st->out = p;
	st->out_cap = cap;
	return 0;
}

int token_stream_push(struct token_stream *st, uint32_t id, const char **ret_text, size_t *ret_len)
{
	size_t len = 0;
	const char *bytes = tokenizer_token_bytes(st->tok, id, &len);

	if (!bytes || (st->skip_special && tokenizer_is_special(st->tok, id)))
		len = 0;
	if (reserve(st, 3 * (st->held_len + len) + 1) < 0)
		return -ENOMEM;
	st->out_len = token_utf8_feed(st->held, &st->held_len, bytes, len, st->out);
	st->out[st->out_len] = 0;
	*ret_text = st->out;
	*ret_len = st->out_len;
	return 0;
}

int token_stream_finish(struct token_stream *st, const char **ret_text, size_t *ret_len)
{
	if (reserve(st, 4) < 0)
		return -ENOMEM;
	st->out_len = st->held_len ? 3 : 0;
	memcpy(st->out, REPLACEMENT, st->out_len);
	st->out[st->out_len] = 0;
	st->held_len = 0;
	*ret_text = st->out;
	*ret_len = st->out_len;
	return 0;
}

void token_stream_fini(struct token_stream *st)
{
	free(st->out);
	*st = (struct token_stream){0};
}
