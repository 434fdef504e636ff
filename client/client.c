#include "client/client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/escape.h"

int client_fail(const struct errbuf *err)
{
	fflush(stdout);
	escape_print(stderr, "heddle: ", err->text);
	return err->exit_code ? err->exit_code : EXIT_OS_ERR;
}

int client_fail_with(int exit_code, const char *fmt, ...)
{
	struct errbuf err = {.exit_code = exit_code};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err.text, sizeof(err.text), fmt, ap);
	va_end(ap);
	return client_fail(&err);
}

int client_finish(int exit_code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return exit_code;
	fprintf(stderr, "heddle: writing the output: %s\n", strerror(errno));
	return exit_code ? exit_code : EXIT_OS_ERR;
}

int client_conf(const char *path, struct conf_set *ret_set, struct errbuf *err)
{
	const char *file = path ? path : HEDDLE_INI;
	int ret = conf_init(ret_set);

	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "no memory for the configuration");
	if (!path && access(file, F_OK) < 0)
		return 0; /* not installed: the defaults */
	ret = conf_read_file(ret_set, file, err);
	if (ret < 0)
		conf_fini(ret_set);
	return ret;
}

int client_socket(const struct client *client, char out[CONF_STR_MAX], struct errbuf *err)
{
	const char *given = client->socket ? client->socket : getenv("HEDDLE_SOCKET");
	struct conf_set set;
	int ret;

	if (given && *given) {
		if ((size_t)snprintf(out, CONF_STR_MAX, "%s", given) >= CONF_STR_MAX)
			return err_set(err, -ENAMETOOLONG, EXIT_USAGE_ERR,
				"the socket's path is too long");
		return 0;
	}
	ret = client_conf(NULL, &set, err);
	if (ret < 0)
		return ret;
	snprintf(out, CONF_STR_MAX, "%s", set.conf.listen_socket);
	conf_fini(&set);
	return 0;
}
