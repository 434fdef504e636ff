#include "coordinator/loop_check.h"

#include <string.h>

int loop_check_kernel(const char *release, struct errbuf *err)
{
	int major = 0, minor = 0;

	if (sscanf(release, "%d.%d", &major, &minor) == 2 &&
		(major > LOOP_KERNEL_MAJOR ||
			(major == LOOP_KERNEL_MAJOR && minor >= LOOP_KERNEL_MINOR)))
		return 0;
	return err_set(err, -ENOSYS, EXIT_OS_ERR,
		"kernel %s is too old: heddled needs Linux %d.%d or newer (io_uring with "
		"DEFER_TASKRUN)",
		release, LOOP_KERNEL_MAJOR, LOOP_KERNEL_MINOR);
}

int loop_explain_setup(int error, int disabled, const char *release, struct errbuf *err)
{
	switch (error) {
	case -EPERM:
		if (disabled > 0)
			return err_set(err, error, EXIT_OS_ERR,
				"io_uring is disabled here by the sysctl kernel.io_uring_disabled "
				"= %d: set it to 0%s",
				disabled,
				disabled == 1 ? ", or add heddled's group to kernel.io_uring_group"
					      : "");
		return err_set(err, error, EXIT_OS_ERR,
			"io_uring is refused (EPERM) on kernel %s, most likely by the seccomp "
			"filter of a container: allow io_uring_setup, io_uring_enter and "
			"io_uring_register",
			release);
	case -ENOSYS:
		return err_set(err, error, EXIT_OS_ERR,
			"kernel %s has no io_uring (ENOSYS): it was built without CONFIG_IO_URING, "
			"or a seccomp filter hides io_uring_setup, io_uring_enter and "
			"io_uring_register",
			release);
	case -ENOMEM:
		return err_set(err, error, EXIT_OS_ERR,
			"no memory for an io_uring ring (ENOMEM): raise the memory limit of the "
			"service");
	case -EMFILE:
	case -ENFILE:
		return err_set(err, error, EXIT_OS_ERR,
			"no file descriptor left for an io_uring ring: raise LimitNOFILE (ulimit "
			"-n)");
	default:
		return err_set(err, error, EXIT_OS_ERR,
			"cannot set up an io_uring ring on kernel %s: %s", release,
			strerror(-error));
	}
}
