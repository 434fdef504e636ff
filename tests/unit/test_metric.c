/* Metrics: buckets, what is taken from /status, and that the text is what Prometheus reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/metric.h"

/* As the engine writes it, with two workers, of which one is down. */
static const char status[] =
	"{\"workers\":[{\"rank\":0,\"state\":\"ready\",\"restarts\":3,\"progress_age_seconds\":0."
	"25,"
	"\"reply_ring_used_bytes\":8,\"memory\":{\"weights_bytes\":10,\"pool_bytes\":20,"
	"\"scratch_bytes\":30,\"sequences_bytes\":40},\"counters\":{\"steps\":5,\"tokens\":6,"
	"\"run_ns\":2500000000,\"wait_ns\":1,\"comm_ns\":2,\"comm_wait_ns\":1,\"comm_bytes\":7,"
	"\"nan_rows\":0,\"load_ns\":1500000000}},{\"rank\":1,\"state\":\"down\",\"restarts\":3}],"
	"\"queue\":{\"waiting\":2,\"limit\":9,\"oldest_seconds\":0.5},\"ring\":{\"bytes\":4096,"
	"\"used_bytes\":64},\"cache\":{\"classes\":[{\"class\":\"raw\",\"pages\":100,\"used\":7,"
	"\"promised\":3,\"bytes_per_page\":512,\"tokens_per_page\":64},{\"class\":\"hca\","
	"\"pages\":4,\"used\":0,\"promised\":0,\"bytes_per_page\":1,\"tokens_per_page\":8192}]},"
	"\"scheduler\":{\"running\":1,\"reading_prompts\":1,\"steps\":12,\"step_seconds_total\":1."
	"5,"
	"\"collective_seconds_total\":0.5,\"steps_in_flight\":1,\"last_step\":{\"seconds\":0.125,"
	"\"sequences\":2,\"tokens\":65},\"handoff_seconds_total\":0.001,\"handoffs\":4,"
	"\"prompt_tokens\":90,\"generated_tokens\":30,\"dropped_tokens\":1,\"finished\":2,"
	"\"cancelled\":3,\"failed\":4,\"expired\":5,\"preempted\":6}}";

static char *print(const struct metrics *m, const char *status_text)
{
	json_t *v = json_loads(status_text, 0, NULL);
	struct outbuf out = {0};
	char *text;

	assert_non_null(v);
	metric_print(m, v, "1.2.3", &out);
	assert_true(outbuf_ok(&out));
	json_decref(v);
	text = strndup(out.data, out.len);
	outbuf_fini(&out);
	return text;
}

static void check_has(const char *text, const char *line)
{
	char full[256];

	snprintf(full, sizeof(full), "\n%s\n", line);
	if (!strstr(text, full))
		fail_msg("no \"%s\" in\n%s", line, text);
}

static void test_print_takes_numbers_from_the_status(void **state)
{
	static const char *const lines[] = {
		"heddle_requests_running 1",
		"heddle_requests_waiting 2",
		"heddle_queue_oldest_seconds 0.5",
		"heddle_last_step_seconds 0.125",
		"heddle_ring_used_bytes 64",
		"heddle_cache_pages{class=\"raw\"} 100",
		"heddle_cache_pages{class=\"hca\"} 4",
		"heddle_cache_pages_used{class=\"raw\"} 7",
		"heddle_cache_page_bytes{class=\"raw\"} 512",
		"heddle_worker_up{rank=\"0\"} 1",
		"heddle_worker_up{rank=\"1\"} 0",
		"heddle_worker_restarts_total{rank=\"1\"} 3",
		"heddle_worker_heartbeat_age_seconds{rank=\"0\"} 0.25",
		"heddle_worker_memory_bytes{rank=\"0\",kind=\"scratch\"} 30",
		"heddle_worker_run_seconds_total{rank=\"0\"} 2.5",
		"heddle_worker_load_seconds{rank=\"0\"} 1.5",
		"heddle_build_info{version=\"1.2.3\"} 1",
	};
	struct metrics m = {0};
	char *text = print(&m, status);
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(lines); i++)
		check_has(text, lines[i]);
	/* a worker that is down tells nothing of itself */
	assert_null(strstr(text, "heddle_worker_steps_total{rank=\"1\"}"));
	free(text);
	/* nothing is known yet: what comes from the status is left out, the rest is there */
	text = print(&m, "{}");
	assert_null(strstr(text, "heddle_worker_"));
	assert_null(strstr(text, "heddle_requests_running"));
	check_has(text, "heddle_requests_total{outcome=\"ok\"} 0");
	free(text);
	text = print(&m, "{\"workers\":7,\"queue\":[],\"cache\":{\"classes\":[1,null]}}");
	assert_null(strstr(text, "heddle_cache"));
	free(text);
}

/* One HELP and one TYPE for a name, just before its samples, which stand together. */
static void test_print_is_well_formed(void **state)
{
	struct metrics m = {.requests_ok = 3};
	char *text = print(&m, status), *line, *save = NULL, name[128] = "", key[160];
	char *seen = calloc(1, strlen(text) + 2);
	size_t len;

	(void)state;
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!strncmp(line, "# HELP ", 7)) {
			len = strcspn(line + 7, " ");
			snprintf(name, sizeof(name), "%.*s", (int)len, line + 7);
			assert_true(line[7 + len] == ' ' && line[7 + len + 1]);
			snprintf(key, sizeof(key), " %s ", name);
			if (strstr(seen, key))
				fail_msg("%s twice", name);
			strcat(seen, key);
			line = strtok_r(NULL, "\n", &save);
			assert_non_null(line);
			snprintf(key, sizeof(key), "# TYPE %s ", name);
			assert_int_equal(strncmp(line, key, strlen(key)), 0);
			continue;
		}
		if (strncmp(line, name, strlen(name)) != 0)
			fail_msg("\"%s\" does not belong to %s", line, name);
		line += strcspn(line, " ");
		assert_true(*line == ' ' && strcspn(line + 1, "0123456789") == 0);
	}
	free(text);
	free(seen);
}

static void test_observe_counts_up_to_and_with_an_edge(void **state)
{
	struct metrics m = {0};
	char *text;

	(void)state;
	metric_observe(&m, METRIC_H_time_to_first_token, 0.001);
	metric_observe(&m, METRIC_H_time_to_first_token, 0.0011);
	metric_observe(&m, METRIC_H_time_to_first_token, 1e9);
	text = print(&m, "{}");
	check_has(text, "heddle_time_to_first_token_seconds_bucket{le=\"0.001\"} 1");
	check_has(text, "heddle_time_to_first_token_seconds_bucket{le=\"0.005\"} 2");
	check_has(text, "heddle_time_to_first_token_seconds_bucket{le=\"2560\"} 2");
	check_has(text, "heddle_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3");
	check_has(text, "heddle_time_to_first_token_seconds_count 3");
	check_has(text, "heddle_request_queue_time_seconds_count 0");
	free(text);
}

struct texts {
	char *printed, *manual;
};

static void find_name(void *user, const char *name)
{
	const struct texts *t = user;
	char text[128];

	snprintf(text, sizeof(text), "# HELP heddle_%s ", name);
	if (!strstr(t->printed, text))
		fail_msg("%s is printed by no status", name);
	snprintf(text, sizeof(text), "`heddle_%s", name);
	if (!strstr(t->manual, text))
		fail_msg("docs/api.md does not mention %s`", text);
}

static void test_each_row_is_printed_and_in_the_manual(void **state)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	struct metrics m = {0};
	char path[4096];
	struct texts t;
	FILE *f;

	(void)state;
	snprintf(path, sizeof(path), "%s/docs/api.md", dir ? dir : ".");
	f = fopen(path, "r");
	if (!f) {
		print_message(
			"%s: %s (HEDDLE_SRCDIR names the source tree)\n", path, strerror(errno));
		skip();
	}
	t.manual = calloc(1, 1 << 20);
	assert_true(fread(t.manual, 1, (1 << 20) - 1, f) > 0);
	fclose(f);
	t.printed = print(&m, status);
	metric_each(find_name, &t);
	free(t.printed);
	free(t.manual);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_print_takes_numbers_from_the_status),
		cmocka_unit_test(test_print_is_well_formed),
		cmocka_unit_test(test_observe_counts_up_to_and_with_an_edge),
		cmocka_unit_test(test_each_row_is_printed_and_in_the_manual),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
