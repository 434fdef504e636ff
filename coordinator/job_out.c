/* What of a job is sent, and when: the server-sent events of a stream, or one body at the end. */
#include <string.h>

#include "coordinator/job.h"

/* Sends what is in api->line; see job.h for what false means. */
static bool job_out_send(struct job *job)
{
	struct api *api = job->task.api;
	struct outbuf *line = &api->line;
	size_t waiting;

	if (!outbuf_ok(line)) {
		outbuf_fini(line);
		job_fail(job, 500, "internal_error", "out of memory");
		return false;
	}
	waiting = http_stream_write(job->task.x, line->data, line->len);
	outbuf_clear(line);
	if (waiting > JOB_BACKLOG_MAX) {
		job_fail(job, 503, "client_too_slow",
			"the client does not read its stream: too much of it is waiting");
		return false;
	}
	loop_timer_set(api->loop, &job->keepalive, loop_now(api->loop) + JOB_KEEPALIVE_NS);
	return true;
}

static void job_out_event_begin(struct outbuf *line)
{
	outbuf_puts(line, "data: ");
}

static void job_out_event_end(struct outbuf *line)
{
	outbuf_puts(line, "\n\n");
}

/*
 * The head goes out with the first thing there is to say, so that whatever fails before it is still
 * an HTTP status.
 */
static void job_out_open(struct job *job)
{
	struct outbuf *line = &job->task.api->line;
	size_t i, mark;

	if (job->open)
		return;
	job->open = true;
	(void)!http_add_header(job->task.x, "cache-control", "no-cache");
	(void)!http_add_header(job->task.x, "x-accel-buffering", "no");
	http_stream_begin(job->task.x, 200, "text/event-stream; charset=utf-8");
	for (i = 0; i < job->choice_n; i++) {
		mark = line->len;
		job_out_event_begin(line);
		if (shape_first(&job->choices[i], line))
			job_out_event_end(line);
		else
			line->len = mark;
	}
}

bool job_out_delta(struct choice *c)
{
	struct job *job = c->job;
	struct outbuf *line = &job->task.api->line;

	if (!answer_ok(&c->answer) || !choice_lists_ok(&c->lists)) {
		job_fail(job, 500, "internal_error", "out of memory");
		return false;
	}
	if (!job_params(job)->stream)
		return true;
	job_out_open(job);
	job_out_event_begin(line);
	if (shape_delta(c, line))
		job_out_event_end(line);
	else
		line->len -= strlen("data: ");
	return line->len ? job_out_send(job) : true;
}

bool job_out_finish(struct choice *c)
{
	struct job *job = c->job;
	struct outbuf *line = &job->task.api->line;

	if (!job_params(job)->stream)
		return true;
	job_out_open(job);
	job_out_event_begin(line);
	shape_finish(c, line);
	job_out_event_end(line);
	return job_out_send(job);
}

/* Bytes of calls that are held back. */
static size_t job_pending(const struct job *job)
{
	size_t i, n = 0;

	for (i = 0; i < job->choice_n; i++)
		n += dsml_pending(&job->choices[i].answer.dsml);
	return n;
}

bool job_out_comment(struct job *job)
{
	struct outbuf *line = &job->task.api->line;

	job_out_open(job);
	if (job->prompt_tokens_total && !job->first_token)
		outbuf_printf(line, ": reading the prompt, %llu of %llu tokens\n\n",
			(unsigned long long)job->read_tokens,
			(unsigned long long)job->prompt_tokens_total);
	else if (job_pending(job))
		outbuf_printf(line, ": a tool call is being written, %zu bytes so far\n\n",
			job_pending(job));
	else
		outbuf_puts(line, ": waiting\n\n");
	return job_out_send(job);
}

int job_out_end(struct job *job)
{
	struct http_exchange *x = job->task.x;
	struct outbuf *line = &job->task.api->line;
	int status = 200;

	job->task.x = NULL;
	if (job_params(job)->stream) {
		if (job_params(job)->include_usage) {
			job_out_event_begin(line);
			shape_usage(job, line);
			job_out_event_end(line);
		}
		outbuf_puts(line, "data: [DONE]\n\n");
		if (outbuf_ok(line)) {
			http_stream_write(x, line->data, line->len);
			http_stream_end(x);
		} else {
			http_stream_abort(x);
			status = 500;
		}
	} else {
		shape_answer(job, line);
		if (outbuf_ok(line)) {
			http_respond(x, status, API_JSON, line->data, line->len);
		} else {
			status = 500;
			api_error(x, status, NULL, "internal_error", "out of memory");
		}
	}
	outbuf_fini(line);
	return status;
}

void job_out_error(struct job *job, int status, const char *code, const char *text)
{
	struct http_exchange *x = job->task.x;
	struct outbuf *line = &job->task.api->line;

	job->task.x = NULL;
	if (!job->open) {
		api_error(x, status, NULL, code, "%s", text);
		return;
	}
	outbuf_fini(line); /* what was about to be sent is void */
	job_out_event_begin(line);
	shape_error(status, code, text, line);
	job_out_event_end(line);
	if (outbuf_ok(line))
		http_stream_write(x, line->data, line->len);
	outbuf_fini(line);
	http_stream_abort(x);
}
