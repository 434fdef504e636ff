/* The line of each request in the log. */
#include <sys/socket.h>
#include <unistd.h>

#include "shm/log.h"
#include "tests/unit/http_harness.h"

static char *read_file(int fd)
{
	static char text[16384];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[MAX(n, 0)] = '\0';
	return text;
}

static void test_a_logged_path_is_cut_between_characters(void **state)
{
	char path[] = "/tmp/heddle-log-XXXXXX", *text, request[1100] = "GET /", want[300];
	int log = mkstemp(path), fd;
	struct harness *h;

	for (int i = 0; i < 300; i++)
		strcpy(request + 5 + 3 * i, i % 2 ? "%a9" : "%c3");
	strcat(request, " HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_int_equal(log_open(path, CONF_LEVEL_INFO, CONF_FORMAT_JSON, "t", NULL), 0);
	h = harness_start(NULL, false);
	fd = client_connect(h);
	client_send(fd, request);
	client_expect(fd, 404, NULL);
	client_send(fd, REQUEST("GET", "/a%ff") "\r\n");
	client_expect(fd, 404, NULL);
	close(fd);
	harness_stop(h);
	assert_int_equal(log_open("stderr", CONF_LEVEL_WARNING, CONF_FORMAT_TEXT, "t", NULL), 0);
	text = read_file(log);
	strcpy(want, "GET /");
	for (int i = 0; i < 99; i++)
		strcat(want, "é");
	strcat(want, " 404 ");
	assert_non_null(strstr(text, want));
	assert_non_null(strstr(text, "GET /a\xef\xbf\xbd 404 "));
	close(log);
	unlink(path);
}

/*
 * One line a request: method, path, status, bytes, time, id, peer by its credentials; 499 for a
 * client that went.
 */
static void test_each_request_is_logged_once(void **state)
{
	char path[] = "/tmp/heddle-log-XXXXXX", *text, peer[80];
	int log = mkstemp(path), fd;
	struct harness *h;

	assert_int_equal(log_open(path, CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "t", NULL), 0);
	h = harness_start(NULL, false);
	fd = client_connect(h);
	client_send(fd,
		REQUEST("POST",
			"/nowhere/%0aforged") "x-request-id: one\r\nContent-Length: 3\r\n\r\nabc");
	client_expect(fd, 404, NULL);
	client_send(fd, REQUEST("HEAD", "/big?70") "x-request-id: two\r\n\r\n");
	client_send(fd, REQUEST("GET", "/hold?secret") "x-request-id: three\r\n\r\n");
	harness_wait(h, &h->counts.held, 1);
	close(fd);
	harness_wait(h, &h->counts.gone, 1);
	fd = client_connect(h);
	client_send(fd, "junk\r\n\r\n");
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	free(client_read_all(fd, NULL));
	close(fd);
	harness_stop(h);
	assert_int_equal(log_open("stderr", CONF_LEVEL_WARNING, CONF_FORMAT_TEXT, "t", NULL), 0);
	text = read_file(log);
	assert_non_null(strstr(text, "http: POST /nowhere/\\nforged 404 "));
	snprintf(peer, sizeof(peer), " ms one unix pid %d uid %u\n", (int)getpid(),
		(unsigned)getuid());
	assert_non_null(strstr(text, peer));
	assert_non_null(strstr(text, "http: HEAD /big 200 0 bytes "));
	assert_non_null(strstr(text, "http: GET /hold 499 0 bytes "));
	assert_non_null(strstr(text, " ms three unix pid "));
	assert_non_null(strstr(text, "http: - - 400 "));
	assert_null(strstr(text, "secret")); /* queries are not logged */
	for (int i = 0; i < 4; i++) {
		text = strchr(text, '\n');
		assert_non_null(text++);
	}
	assert_string_equal(text, "");
	close(log);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_request_is_logged_once),
		cmocka_unit_test(test_a_logged_path_is_cut_between_characters),
	};

	log_set_level(CONF_LEVEL_WARNING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
