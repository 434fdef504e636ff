#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/place.h"

/* CPUs' worth of time that one cpu.max grants, rounded down to 1 or more; UINT32_MAX: no bound. */
static uint32_t read_cpu_max(const char *dir)
{
	unsigned long long quota, period;
	char path[PATH_MAX];
	uint32_t cpus = UINT32_MAX;
	FILE *f;

	if (snprintf(path, sizeof(path), "%s/cpu.max", dir) >= (int)sizeof(path))
		return cpus;
	f = fopen(path, "re");
	if (!f)
		return cpus; /* the root has none, nor a group whose controller is off */
	if (fscanf(f, "%llu %llu", &quota, &period) == 2 && period > 0)
		cpus = (uint32_t)MIN(MAX(quota / period, 1ull), (unsigned long long)CPUS_MAX);
	fclose(f);
	return cpus;
}

/* The path behind "0::" in /proc/PID/cgroup, the line of cgroup v2. */
static bool read_group(const char *self, char *ret_path, size_t size)
{
	FILE *f = fopen(self, "re");
	char line[PATH_MAX];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		found = strncmp(line, "0::/", 4) == 0 && !strstr(line, "/..");
		if (found)
			snprintf(ret_path, size, "%s", line + 3);
	}
	if (f)
		fclose(f);
	return found;
}

uint32_t place_quota(const char *mount, const char *self)
{
	char group[PATH_MAX], dir[2 * PATH_MAX], *slash;
	uint32_t least = UINT32_MAX;

	if (!read_group(self, group, sizeof(group)))
		return 0;
	for (;;) { /* every group above bounds those below */
		snprintf(dir, sizeof(dir), "%s%s", mount, group);
		least = MIN(least, read_cpu_max(dir));
		slash = strrchr(group, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	return least == UINT32_MAX ? 0 : least;
}
