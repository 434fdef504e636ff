/* Rules that take more than one key, or that say what this build cannot do. */
#include <string.h>
#include <sys/un.h>

#include "coordinator/conf.h"

PRINTF_LIKE(2, 3)
static int refuse(struct errbuf *err, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%s", text);
}

static int check_listen(const struct conf *c, struct errbuf *err)
{
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

	if (!c->listen_socket[0] && !c->listen_tcp[0])
		return refuse(err, "listen.socket and listen.tcp are both empty: set one of them");
	if (strlen(c->listen_socket) > room)
		return refuse(err,
			"listen.socket is %zu bytes long; a Unix socket's path has room for %zu",
			strlen(c->listen_socket), room);
	return 0;
}

static int check_fabric(const struct conf *c, struct errbuf *err)
{
	if (c->fabric_ring & (c->fabric_ring - 1))
		return refuse(err, "fabric.ring must be a power of two, such as 8M");
	if (c->fabric_backend == CONF_BACKEND_CUDA)
		return refuse(err,
			"fabric.backend = cuda: this build has no CUDA workers; use cpu or auto");
	if (c->fabric_collective == CONF_COLLECTIVE_NCCL)
		return refuse(err, "fabric.collective = nccl needs CUDA workers; use auto or shm");
	if (c->fabric_devices[0])
		return refuse(err, "fabric.devices names CUDA devices, and this build has no CUDA "
				   "workers; leave it empty");
	return 0;
}

/* Keys whose feature does not exist yet must say so instead of being ignored. */
static int check_not_built(const struct conf *c, struct errbuf *err)
{
	if (c->cache_prefix)
		return refuse(err, "cache.prefix: reuse of common prefixes is not built yet; "
				   "leave it off");
	if (c->cache_disk_dir[0] || c->cache_disk_bytes)
		return refuse(err, "cache.disk_dir and cache.disk_bytes: state on disk is not "
				   "built yet; leave them empty and 0");
	if (c->guard_canary_interval || c->guard_shadow_rate > 0)
		return refuse(err, "guard.canary_interval and guard.shadow_rate: the guards are "
				   "not built yet; leave them 0");
	return 0;
}

int conf_check(const struct conf_set *set, struct errbuf *err)
{
	const struct conf *c = &set->conf;
	int r;

	if (!c->model_path[0])
		return refuse(err, "model.path is not set: give the directory of a checkpoint, in "
				   "the file or by -s model.path=DIR");
	r = check_listen(c, err);
	if (r == 0)
		r = check_fabric(c, err);
	if (r == 0)
		r = check_not_built(c, err);
	return r;
}
