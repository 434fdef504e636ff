/* How much at a time: connections over the limit, who makes room for whom, bodies in memory. */
#include <poll.h>
#include <unistd.h>

#include "shm/log.h"
#include "tests/unit/http_harness.h"

static void test_connections_over_the_limit_get_503(void **state)
{
	struct http_limits limits = {.max_connections = 3};
	struct harness *h = harness_start(&limits, false);
	int busy[3], fd;

	for (int i = 0; i < 3; i++) {
		busy[i] = client_connect(h);
		client_send(busy[i], GET("/later"));
	}
	harness_wait(h, &h->counts.held, 3);
	fd = client_connect(h);
	client_send(fd, GET("/echo"));
	client_expect(fd, 503, NULL);
	client_expect_end(fd);
	close(fd);
	harness_release(h);
	for (int i = 0; i < 3; i++)
		client_expect(busy[i], 200, "late");
	/*
	 * Each asks once more, one after the other: Linux 6.1 reports what became ready at the same
	 * time newest first, so that "later" may have been asked, and answered, in any order.
	 */
	for (int i = 0; i < 3; i++) {
		client_send(busy[i], GET("/echo"));
		client_expect(busy[i], 200, "");
	}
	/* now they are idle: the one that has been so for longest makes room */
	fd = client_connect(h);
	client_send(fd, GET("/echo"));
	client_expect(fd, 200, "");
	client_expect_end(busy[0]);
	for (int i = 0; i < 3; i++)
		close(busy[i]);
	close(fd);
	harness_expect_healthy(h);
	harness_stop(h);
}

struct crowd {
	int kept[3], fresh[3];
};

/* While the loop waits for this function; so the loop finds all of it in one turn. */
static void do_crowd(struct harness *h, void *arg)
{
	struct crowd *crowd = arg;

	close(crowd->kept[0]);
	for (int i = 0; i < 3; i++)
		crowd->fresh[i] = client_connect(h);
	client_send(crowd->kept[1], GET("/echo"));
	for (int i = 0; i < 3; i++)
		client_send(crowd->fresh[i], GET("/echo"));
}

/*
 * One has just gone and leaves its place, an idle one makes room; those whose request is on its way
 * are no room to be made. Who comes then is told so, or has the place of one that has had its
 * answer: Linux 6.1 reports in another order.
 */
static void test_a_request_on_its_way_is_not_lost_to_make_room(void **state)
{
	struct http_limits limits = {.max_connections = 3};
	struct harness *h = harness_start(&limits, false);
	struct crowd crowd;
	int status;

	for (int i = 0; i < 3; i++) {
		crowd.kept[i] = client_connect(h);
		client_send(crowd.kept[i], GET("/echo"));
		client_expect(crowd.kept[i], 200, "");
	}
	harness_call(h, do_crowd, &crowd);
	client_expect(crowd.kept[1], 200, "");
	client_expect(crowd.fresh[0], 200, "");
	client_expect(crowd.fresh[1], 200, "");
	status = client_read_answer(crowd.fresh[2], NULL, NULL, NULL);
	assert_true(status == 503 || status == 200);
	client_expect_end(crowd.kept[2]);
	for (int i = 0; i < 3; i++) {
		close(crowd.fresh[i]);
		if (i > 0)
			close(crowd.kept[i]);
	}
	harness_expect_healthy(h);
	harness_stop(h);
}

/* So many large bodies at a time that the next one is told to come back. */
static void test_bodies_in_memory_are_bounded(void **state)
{
	struct http_limits limits = {.max_body = 65536};
	struct harness *h = harness_start(&limits, false);
	enum { N = 40 };
	static char body[65536];
	int fd[N], held = 0, refused = 0;

	for (int i = 0; i < N; i++) {
		struct pollfd p;

		fd[i] = client_connect(h);
		client_send(fd[i], REQUEST("POST", "/later") "Content-Length: 65536\r\n\r\n");
		client_send_bytes(fd[i], body, sizeof(body));
		p = (struct pollfd){.fd = fd[i], .events = POLLIN};
		while (harness_counts(h).held == (uint32_t)held && poll(&p, 1, 1) == 0)
			;
		if (harness_counts(h).held > (uint32_t)held) {
			held++;
		} else {
			client_expect(fd[i], 503, NULL);
			refused++;
		}
	}
	assert_in_range(held, 14, 16); /* 16 times max_body, with the growth of the buffers */
	assert_int_equal(refused, N - held);
	harness_release(h);
	for (int i = 0; i < N; i++)
		close(fd[i]);
	/* nothing of it stays counted; and a handler that drops the body pays nothing */
	harness_wait(h, &h->counts.connections, 0);
	for (int i = 0; i < N; i++) {
		fd[i] = client_connect(h);
		client_send(fd[i], REQUEST("POST", "/hold") "Content-Length: 65536\r\n\r\n");
		client_send_bytes(fd[i], body, sizeof(body));
		harness_wait(h, &h->counts.held, (uint32_t)(held + i + 1));
	}
	for (int i = 0; i < N; i++)
		close(fd[i]);
	harness_expect_healthy(h);
	harness_stop(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_connections_over_the_limit_get_503),
		cmocka_unit_test(test_a_request_on_its_way_is_not_lost_to_make_room),
		cmocka_unit_test(test_bodies_in_memory_are_bounded),
	};

	log_set_level(CONF_LEVEL_WARNING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
