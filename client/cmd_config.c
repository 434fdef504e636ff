/* heddle config: the configuration, its sample file, its manual page. */
#include "client/opts.h"
#include "shm/escape.h"

static int dump(const char *file, const struct opt_list *sets, enum conf_dump what)
{
	struct errbuf err = {"", 0};
	struct conf_set set;
	int ret = client_conf(file, &set, &err);

	if (ret < 0)
		return client_fail(&err);
	for (size_t i = 0; i < sets->n && ret == 0; i++)
		ret = conf_override(&set, sets->items[i], &err);
	if (ret < 0)
		ret = client_fail(&err);
	else if (conf_dump(&set, what, stdout) < 0)
		ret = client_fail_with(EXIT_OS_ERR, "printing the configuration failed");
	else if (what == CONF_DUMP_EFFECTIVE && conf_check(&set, &err) < 0)
		escape_print(stderr, "note: heddled would refuse this: ", err.text);
	conf_fini(&set);
	return ret;
}

int cmd_config(const struct client *client, const struct client_cmd *self, int argc, char **argv)
{
	const char *file = NULL;
	struct opt_list sets = {.n = 0};
	bool ini = false, man = false, effective = false;
	const struct opt table[] = {
		{"config", 'c', "FILE", OPT_STR, &file, 0, 0, "instead of " HEDDLE_INI},
		{"set", 's', "SECTION.KEY=VALUE", OPT_LIST, &sets, 0, 0,
			"override a key; repeatable"},
		{"effective", 0, NULL, OPT_FLAG, &effective, 0, 0,
			"every key, its value and where it came from (the default)"},
		{"ini", 0, NULL, OPT_FLAG, &ini, 0, 0, "a commented heddle.ini with all defaults"},
		{"man", 0, NULL, OPT_FLAG, &man, 0, 0, "the manual page heddle.ini(5)"},
	};
	int rest, ret = opts_parse(self, table, ARRAY_LEN(table), argc, argv, &rest);

	(void)client;
	if (ret != 0)
		return ret < 0 ? EXIT_USAGE_ERR : 0;
	if (rest < argc)
		return client_fail_with(
			EXIT_USAGE_ERR, "config: %s: no argument is needed", argv[rest]);
	if (ini + man + effective > 1)
		return client_fail_with(
			EXIT_USAGE_ERR, "config: one of --effective, --ini and --man at a time");
	return dump(file, &sets, ini ? CONF_DUMP_INI : man ? CONF_DUMP_MAN : CONF_DUMP_EFFECTIVE);
}
