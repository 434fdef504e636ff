#include "worker/conf_sane.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static int bad(struct errbuf *err, const char *key, int64_t value)
{
	char text[24] = "auto";

	if (value != CONF_AUTO)
		snprintf(text, sizeof(text), "%" PRId64, value);
	return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
		"%s: the frozen configuration holds %s, which heddled never writes: are heddled "
		"and heddle-worker of the same version?",
		key, text);
}

static bool within(int64_t value, const char *word, int64_t min, int64_t max)
{
	return (value >= min && value <= max) || (*word && value == CONF_AUTO);
}

static bool real_within(double value, const char *word, double min, double max)
{
	return (value >= min && value <= max) || (*word && value == CONF_REAL_AUTO);
}

int conf_sane(const struct conf *conf, struct errbuf *err)
{
#define ONE(name, suffix) +1
#define CONF_SECTION(s, help)
#define CONF_STR(s, k, def, reload, help)                                                          \
	if (!memchr(conf->s##_##k, '\0', sizeof(conf->s##_##k)))                                   \
		return bad(err, #s "." #k, 0);
#define CONF_BOOL(s, k, def, reload, help)                                                         \
	if (!within(conf->s##_##k, "", 0, 1))                                                      \
		return bad(err, #s "." #k, conf->s##_##k);
#define CONF_ENUM(s, k, def, choices, reload, help)                                                \
	if (!within(conf->s##_##k, "", 0, CONF_##choices(ONE) - 1))                                \
		return bad(err, #s "." #k, conf->s##_##k);
#define CONF_OCT(s, k, def, min, max, reload, help) CONF_INT(s, k, def, "", min, max, reload, help)
#define CONF_INT(s, k, def, word, min, max, reload, help)                                          \
	if (!within(conf->s##_##k, word, min, max))                                                \
		return bad(err, #s "." #k, conf->s##_##k);
#define CONF_SIZE(s, k, def, word, min, max, reload, help)                                         \
	CONF_INT(s, k, def, word, min, max, reload, help)
#define CONF_TIME(s, k, def, word, min, max, reload, help)                                         \
	CONF_INT(s, k, def, word, min, max, reload, help)
#define CONF_REAL(s, k, def, word, min, max, reload, help)                                         \
	if (!real_within(conf->s##_##k, word, min, max))                                           \
		return bad(err, #s "." #k, (int64_t)conf->s##_##k);
#include "etc/conf.def"
#include "etc/conf_undef.def"
	/* what placement decides is decided (coordinator/place.c) */
	if (conf->fabric_workers == CONF_AUTO)
		return bad(err, "fabric.workers", CONF_AUTO);
	if (conf->fabric_threads == CONF_AUTO)
		return bad(err, "fabric.threads", CONF_AUTO);
	if (conf->fabric_spin == CONF_AUTO)
		return bad(err, "fabric.spin", CONF_AUTO);
	return 0;
}

int conf_read_fd(int fd, struct conf *ret_conf, struct errbuf *err)
{
	size_t got = 0;
	ssize_t n = 1;
	int ret = 0;

	(void)lseek(fd, 0, SEEK_SET); /* a pipe is read from where it is */
	while (got < sizeof(*ret_conf) && n > 0) {
		n = read(fd, (char *)ret_conf + got, sizeof(*ret_conf) - got);
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n > 0)
			got += (size_t)n;
	}
	if (n < 0)
		ret = err_set(err, -errno, EXIT_OS_ERR, "cannot read the configuration: %s",
			strerror(errno));
	else if (got < sizeof(*ret_conf))
		ret = err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"the configuration has %zu bytes instead of %zu: are heddled and "
			"heddle-worker of the same version?",
			got, sizeof(*ret_conf));
	close(fd);
	return ret < 0 ? ret : conf_sane(ret_conf, err);
}
