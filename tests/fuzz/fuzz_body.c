/*
 * A request's body as the input, after one byte that chooses the call: read as the API reads it
 * (body.c, param.c, prep.c and what they call), with the bundled model's tokenizer. What is refused
 * must be a 400 with a sentence of one line; what is accepted must hold the rules that the engine
 * relies on, need none of the body's bytes any more, and come out the same a second time.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/prep.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *tok;
static struct token_scratch *scratch;

static void load(void)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	char path[4096];
	struct errbuf err;

	snprintf(path, sizeof(path), "%s/models/heddle-mini", dir ? dir : ".");
	if (tokenizer_load(path, &tok, &err) < 0) {
		fprintf(stderr, "%s (HEDDLE_SRCDIR names the source folder)\n", err.text);
		exit(1);
	}
	scratch = token_scratch_new(tok);
	if (!scratch)
		abort();
}

/* The body lies in memory of its own size, and is gone when this returns. */
static void run(struct prep *p, const uint8_t *data, size_t size)
{
	static const enum param_scope scopes[] = {S_CHAT, S_TEXT, S_TOKENIZE, S_DETOKENIZE};
	static const struct conf conf = {
		.api_temperature = CONF_REAL_AUTO, .api_top_p = CONF_REAL_AUTO};
	static const uint32_t eos = 1;
	char *body = malloc(size); /* one byte of options less, NUL more */
	struct errbuf err;

	memcpy(body, data + 1, size - 1);
	body[size - 1] = '\0';
	*p = (struct prep){0};
	if (param_defaults(&conf, NULL, "generation_config.json", &p->params, &err) < 0)
		abort();
	p->in = (struct prep_in){
		.scope = scopes[data[0] & 3],
		.strict = data[0] & 4,
		.tok = tok,
		.scratch = scratch,
		.body = body,
		.body_len = size - 1,
		.eos = &eos,
		.eos_n = 1,
		.vocab = tokenizer_vocab(tok),
	};
	prep_run(p);
	free(body);
}

static void check_refused(const struct prep *p)
{
	const char *text = p->error.err.text;

	if (p->status != 400 || !text[0] || strchr(text, '\n'))
		abort();
	if (strlen(p->error.name) >= sizeof(p->error.name))
		abort();
}

static void check_prompts(const struct prep *p)
{
	bool generate = p->in.scope & (S_CHAT | S_TEXT);

	if (!p->prompt_n || p->prompt_n > PREP_PROMPTS_MAX ||
		p->prompt_n * (size_t)p->params.n > PREP_CHOICES_MAX)
		abort();
	for (size_t i = 0; i < p->prompt_n; i++) {
		const struct token_ids *ids = &p->prompts[i].ids;

		if (generate && !ids->len)
			abort();
		for (size_t j = 0; j < ids->len; j++)
			if (ids->ids[j] >= p->in.vocab)
				abort();
	}
}

static void check_params(const struct prep *p)
{
	const struct params *r = &p->params;
	size_t len, n = json_is_array(r->stop) ? json_array_size(r->stop) : r->stop != NULL;

	if (!(r->temperature >= 0 && r->temperature <= 100 && r->top_p >= 0 && r->top_p <= 1 &&
		    r->min_p >= 0 && r->min_p <= 1 && r->top_k >= -1 && r->repetition_penalty > 0 &&
		    isfinite(r->repetition_penalty) && fabs(r->frequency_penalty) <= 2 &&
		    fabs(r->presence_penalty) <= 2))
		abort();
	if (r->n < 1 || r->n > 128 || r->max_tokens < 0 || r->min_tokens < 0 ||
		r->top_logprobs < 0 || r->top_logprobs > 20 || r->logprobs_n < 0 ||
		r->logprobs_n > 20)
		abort();
	if (r->model && json_string_length(r->model) > p->in.body_len)
		abort();
	for (size_t i = 0; i < n && (p->in.scope & (S_CHAT | S_TEXT)); i++)
		if (!prep_stop_text(p, i, &len) || !len || len > PREP_STOP_BYTES_MAX)
			abort();
	if (p->stop_token_n > PREP_STOP_TOKENS_MAX + p->in.eos_n || p->bias_n > PREP_BIAS_MAX ||
		p->end_token_n > p->stop_token_n)
		abort();
	for (size_t i = 0; i < p->stop_token_n; i++)
		if (p->stop_tokens[i] >= p->in.vocab)
			abort();
	for (size_t i = 0; i < p->bias_n; i++)
		if (p->bias[i].token >= p->in.vocab || !(fabsf(p->bias[i].bias) <= 100))
			abort();
}

static void check_same(const struct prep *a, const struct prep *b)
{
	if (a->status != b->status || strcmp(a->error.err.text, b->error.err.text) != 0 ||
		strcmp(a->error.name, b->error.name) != 0)
		abort();
	if (a->status)
		return;
	if (a->prompt_n != b->prompt_n || a->unknown.len != b->unknown.len)
		abort();
	for (size_t i = 0; i < a->prompt_n; i++) {
		const struct token_ids *x = &a->prompts[i].ids, *y = &b->prompts[i].ids;

		if (x->len != y->len ||
			(x->len && memcmp(x->ids, y->ids, x->len * sizeof(*x->ids)) != 0))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct prep first, second;

	if (!tok)
		load();
	if (!size)
		return 0;
	run(&first, data, size);
	if (first.status) {
		check_refused(&first);
	} else {
		check_prompts(&first);
		check_params(&first);
	}
	run(&second, data, size);
	check_same(&first, &second);
	prep_fini(&first);
	prep_fini(&second);
	return 0;
}
