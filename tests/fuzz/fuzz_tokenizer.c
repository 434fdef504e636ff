/*
 * tokenizer.json as the input. What is accepted must tokenise the input itself and give it back:
 * with every byte trusted, with none, and from a stream.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stream(
	const struct tokenizer *tok, const struct token_ids *ids, const char *want, size_t want_len)
{
	struct token_stream st;
	const char *piece;
	size_t at = 0, len;

	token_stream_init(&st, tok, false);
	for (size_t i = 0; i <= ids->len; i++) {
		int r = i < ids->len ? token_stream_push(&st, ids->ids[i], &piece, &len)
				     : token_stream_finish(&st, &piece, &len);

		if (r < 0 || at + len > want_len || memcmp(want + at, piece, len) != 0)
			abort();
		at += len;
	}
	if (at != want_len)
		abort();
	token_stream_fini(&st);
}

static void round_trip(const struct tokenizer *tok, const char *text, size_t size, bool trusted)
{
	struct token_scratch *s = token_scratch_new(tok);
	uint8_t *none = calloc(1, size + 1);
	struct token_ids ids = {0};
	size_t len;
	char *back;
	int r = tokenizer_encode(tok, s, text, size, trusted ? NULL : none, false, &ids);

	if (r == 0) {
		back = tokenizer_decode(tok, ids.ids, ids.len, false, &len);
		if (len != size || memcmp(back, text, size) != 0)
			abort();
		check_stream(tok, &ids, back, len);
		for (size_t i = 0; i < ids.len && !trusted; i++)
			if (tokenizer_is_added(tok, ids.ids[i]))
				abort();
		free(back);
	} else if (r != -E2BIG && r != -EILSEQ) {
		abort();
	}
	token_ids_free(&ids);
	token_scratch_free(s);
	free(none);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tokenizer *tok = NULL;
	struct errbuf err = {0};

	if (tokenizer_parse(data, size, NULL, 0, &tok, &err) < 0) {
		if (!err.text[0] || strchr(err.text, '\n'))
			abort();
		return 0;
	}
	round_trip(tok, (const char *)data, size, true);
	round_trip(tok, (const char *)data, size, false);
	tokenizer_free(tok);
	return 0;
}
