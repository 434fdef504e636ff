#include "coordinator/answer.h"

void answer_init(struct answer *a, const struct tokenizer *tok, bool skip_special,
	const struct stop_set *think, const struct stop_set *stops)
{
	*a = (struct answer){.reasoning = think != NULL};
	token_stream_init(&a->stream, tok, skip_special);
	stop_scan_init(&a->think, think);
	stop_scan_init(&a->stop, stops);
}

void answer_fini(struct answer *a)
{
	token_stream_fini(&a->stream);
	outbuf_fini(&a->content);
	outbuf_fini(&a->thought);
}

size_t answer_count_chars(const char *text, size_t len)
{
	size_t n = 0, i;

	for (i = 0; i < len; i++)
		n += ((uint8_t)text[i] & 0xc0) != 0x80;
	return n;
}

/* Text into the part it belongs to. Returns as answer_push(). */
static int answer_text(struct answer *a, const char *text, size_t len, bool armed)
{
	size_t used = 0;

	a->chars += answer_count_chars(text, len);
	if (a->reasoning) {
		if (stop_scan_feed(&a->think, text, len, true, &a->thought, &used) < 0)
			return -1;
		a->reasoning = false;
		text += used;
		len -= used;
	}
	return stop_scan_feed(&a->stop, text, len, armed, &a->content, NULL);
}

int answer_push(struct answer *a, uint32_t token, bool armed)
{
	const char *text;
	size_t len;

	if (token_stream_push(&a->stream, token, &text, &len))
		return -ENOMEM;
	return answer_text(a, text, len, armed);
}

int answer_finish(struct answer *a)
{
	const char *text;
	size_t len;

	if (token_stream_finish(&a->stream, &text, &len))
		return -ENOMEM;
	/* a replacement character can end no stop string that the bytes before it did not */
	(void)answer_text(a, text, len, false);
	if (a->reasoning)
		stop_scan_finish(&a->think, &a->thought);
	else
		stop_scan_finish(&a->stop, &a->content);
	return 0;
}
