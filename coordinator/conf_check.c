/* Rules that take more than one key, or that say what this build cannot do. */
#include <string.h>
#include <sys/un.h>

#include "coordinator/conf_rows.h"

/* Says where the value stands, if it is a file's. */
PRINTF_LIKE(4, 5)
static int refuse(const struct conf_set *set, size_t row, struct errbuf *err, const char *fmt, ...)
{
	char text[400], where[CONF_STR_MAX] = "";
	bool in_file = set->origins->row[row].kind == CONF_FROM_FILE;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (in_file)
		conf_row_origin(set, row, where, sizeof(where));
	return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%s%s%s", where, in_file ? ": " : "", text);
}

static int check_listen(const struct conf_set *set, struct errbuf *err)
{
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
	const struct conf *c = &set->conf;

	if (!c->listen_socket[0] && !c->listen_tcp[0])
		return refuse(set, CONF_ROW_listen_socket, err,
			"listen.socket and listen.tcp are both empty: set one of them");
	if (strlen(c->listen_socket) > room)
		return refuse(set, CONF_ROW_listen_socket, err,
			"listen.socket is %zu bytes long; a Unix socket's path has room for %zu",
			strlen(c->listen_socket), room);
	return 0;
}

static int check_fabric(const struct conf_set *set, struct errbuf *err)
{
	const struct conf *c = &set->conf;

	if (c->fabric_ring & (c->fabric_ring - 1))
		return refuse(set, CONF_ROW_fabric_ring, err,
			"fabric.ring must be a power of two, such as 8M");
	if (c->fabric_backend == CONF_BACKEND_CUDA)
		return refuse(set, CONF_ROW_fabric_backend, err,
			"fabric.backend = cuda: this build has no CUDA workers; use cpu or auto");
	if (c->fabric_collective == CONF_COLLECTIVE_NCCL)
		return refuse(set, CONF_ROW_fabric_collective, err,
			"fabric.collective = nccl needs CUDA workers; use auto or shm");
	if (c->fabric_devices[0])
		return refuse(set, CONF_ROW_fabric_devices, err,
			"fabric.devices names CUDA devices, and this build has no CUDA workers; "
			"leave it empty");
	return 0;
}

/* A misspelt word is no file; and a path that depends on where heddled was started is one file for
 * heddled -t by hand and another, in /, for the service. */
static int check_log(const struct conf_set *set, struct errbuf *err)
{
	const char *target = set->conf.log_target;

	if (target[0] == '/' || strcmp(target, "stderr") == 0 || strcmp(target, "syslog") == 0)
		return 0;
	return refuse(set, CONF_ROW_log_target, err,
		"log.target = %.80s: must be stderr, syslog or an absolute path, such as "
		"/var/log/heddle/heddled.log",
		target);
}

/* Keys whose feature does not exist yet must say so instead of being ignored. */
static int check_not_built(const struct conf_set *set, struct errbuf *err)
{
	const struct conf *c = &set->conf;

	if (c->cache_prefix)
		return refuse(set, CONF_ROW_cache_prefix, err,
			"cache.prefix: reuse of common prefixes is not built yet; leave it off");
	if (c->cache_disk_dir[0] || c->cache_disk_bytes)
		return refuse(set,
			c->cache_disk_dir[0] ? CONF_ROW_cache_disk_dir : CONF_ROW_cache_disk_bytes,
			err,
			"cache.disk_dir and cache.disk_bytes: state on disk is not built yet; "
			"leave them empty and 0");
	if (c->guard_canary_interval || c->guard_shadow_rate > 0)
		return refuse(set,
			c->guard_canary_interval ? CONF_ROW_guard_canary_interval
						 : CONF_ROW_guard_shadow_rate,
			err,
			"guard.canary_interval and guard.shadow_rate: the guards are not built "
			"yet; leave them 0");
	return 0;
}

int conf_check(const struct conf_set *set, struct errbuf *err)
{
	int r;

	if (!set->conf.model_path[0])
		return refuse(set, CONF_ROW_model_path, err,
			"model.path is not set: give the directory of a checkpoint, in the file or "
			"by -s model.path=DIR");
	r = check_listen(set, err);
	if (r == 0)
		r = check_fabric(set, err);
	if (r == 0)
		r = check_log(set, err);
	if (r == 0)
		r = check_not_built(set, err);
	return r;
}
