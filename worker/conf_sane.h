/*
 * conf_sane.h: is this struct conf one that conf.def allows, with what placement decides decided?
 * The bytes come from another process, so a worker looks before it uses a value as an index or a
 * size. Rules across keys are the coordinator's (coordinator/conf_check.c), rules with the model
 * shape.h's.
 */
#ifndef WORKER_CONF_SANE_H
#define WORKER_CONF_SANE_H

#include "shm/conf_types.h"
#include "shm/util.h"

/* 0, or -EINVAL with err naming the key (exit code 78). */
int conf_sane(const struct conf *conf, struct errbuf *err) MUST_CHECK;

/* Reads a struct conf from a file descriptor (from its beginning, if it can seek), and checks it.
 * Takes the fd. */
int conf_read_fd(int fd, struct conf *ret_conf, struct errbuf *err) MUST_CHECK;

#endif
