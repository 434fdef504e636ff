/* Prints the sample file or the man page from etc/conf.def; `make ini` writes both with it. */
#include <string.h>

#include "coordinator/conf.h"

int main(int argc, char **argv)
{
	struct conf_set set;
	int r;

	if (argc != 2 || (strcmp(argv[1], "ini") && strcmp(argv[1], "man"))) {
		fprintf(stderr, "usage: confdump ini|man\n");
		return EXIT_USAGE_ERR;
	}
	r = conf_init(&set);
	if (r == 0)
		r = conf_dump(&set, argv[1][0] == 'i' ? CONF_DUMP_INI : CONF_DUMP_MAN, stdout);
	conf_fini(&set);
	return r < 0 ? EXIT_SOFTWARE_ERR : 0;
}
