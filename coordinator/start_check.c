#include "coordinator/start_check.h"

#include <string.h>
#include <sys/stat.h>

#include "coordinator/daemon.h"
#include "coordinator/listen.h"
#include "shm/file.h"

static bool is_below(const char *path, const char *dir)
{
	return strncmp(path, dir, strlen(dir)) == 0;
}

/* The directory that a file of ours is to stand in. */
static int check_directory(const char *key, const char *path, struct errbuf *err)
{
	char dir[CONF_STR_MAX];
	struct stat st;
	int error = 0;

	if (!path[0] || is_below(path, "/run/") || is_below(path, "/var/run/"))
		return 0;
	file_directory(path, dir, sizeof(dir));
	if (stat(dir, &st) < 0)
		error = errno;
	else if (!S_ISDIR(st.st_mode))
		error = ENOTDIR;
	if (!error)
		return 0;
	return err_set(err, -error, file_exit_code(error), "%s: directory %.300s: %s", key, dir,
		strerror(error));
}

int start_check(const struct conf *conf, bool listens, struct errbuf *err)
{
	int r = daemon_check(conf->daemon_user, conf->daemon_group, err);

	if (r == 0)
		r = check_directory("daemon.pidfile", conf->daemon_pidfile, err);
	if (r == 0 && listens && conf->listen_socket[0]) {
		r = check_directory("listen.socket", conf->listen_socket, err);
		if (r == 0)
			r = listen_check_unix(conf->listen_socket, conf->listen_group, err);
	}
	if (r == 0 && listens && conf->listen_tcp[0])
		r = listen_check_tcp(conf->listen_tcp, err);
	if (r == 0) /* "stderr" and "syslog" are in no directory */
		r = check_directory("log.target", conf->log_target, err);
	return r;
}
