/* listen_unix.h: what listen.c and listen_unix.c share. Users see listen.h. */
#ifndef COORDINATOR_LISTEN_UNIX_H
#define COORDINATOR_LISTEN_UNIX_H

#include "coordinator/listen.h"

/* Adds a socket to a set that is not full. */
struct listen_socket *listen_add(struct listen_set *set, int fd, bool is_unix);

/* The directory of a path; "." where it names none. */
void listen_directory(const char *path, char ret_dir[LISTEN_PATH_MAX + 1]);

#endif
