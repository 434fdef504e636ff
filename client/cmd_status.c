/* heddle status: /status for people. What it shows follows from what the daemon sends. */
#include <inttypes.h>
#include <string.h>

#include <jansson.h>

#include "client/call.h"
#include "client/opts.h"
#include "client/text.h"

/* A value by its key: sizes and times are shown as such, nested objects in one cell. */
static void show(const char *key, const json_t *v, char *out, size_t cap)
{
	char text[TEXT_SHORT];
	const char *name;
	json_t *member;
	size_t at = 0;

	out[0] = '\0';
	if (json_is_string(v)) {
		snprintf(out, cap, "%s", json_string_value(v));
	} else if (json_is_integer(v) && strstr(key, "bytes")) {
		snprintf(out, cap, "%s", text_bytes((uint64_t)json_integer_value(v), text));
	} else if (json_is_number(v) && strstr(key, "seconds")) {
		snprintf(out, cap, "%s", text_seconds(json_number_value(v), text));
	} else if (json_is_integer(v) && strstr(key, "_ns")) {
		snprintf(out, cap, "%s", text_seconds((double)json_integer_value(v) * 1e-9, text));
	} else if (json_is_integer(v)) {
		snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	} else if (json_is_real(v)) {
		snprintf(out, cap, "%.6g", json_real_value(v));
	} else if (json_is_boolean(v)) {
		snprintf(out, cap, "%s", json_is_true(v) ? "yes" : "no");
	} else if (json_is_object(v)) {
		json_object_foreach ((json_t *)v, name, member) {
			char part[128];

			show(name, member, part, sizeof(part));
			at += (size_t)snprintf(
				out + at, cap - at, "%s%s %s", at ? ", " : "", name, part);
			if (at >= cap)
				return;
		}
	} else {
		snprintf(out, cap, "-");
	}
}

static void show_members(const json_t *object, const char *but)
{
	struct text_table t;
	const char *key;
	json_t *v;

	text_table_init(&t, 2, 0);
	json_object_foreach ((json_t *)object, key, v) {
		char cell[512];

		if (json_is_array(v) || (but && json_is_object(v)))
			continue;
		show(key, v, cell, sizeof(cell));
		text_table_add(&t, "%s", key);
		text_table_add(&t, "%s", cell);
	}
	(void)!text_table_print(&t, stdout, 2);
}

/* Longer values would tear a table apart: they go in lines of their own. */
enum { CELL_MAX = 24 };

/* The plain members of all elements whose values are short: the table's columns. */
static json_t *columns(const json_t *array)
{
	json_t *keys = json_object(), *v, *e;
	const char *key;
	size_t i;

	json_array_foreach ((json_t *)array, i, e)
		json_object_foreach (e, key, v)
			if (!json_is_object(v) && !json_is_array(v))
				json_object_set_new(keys, key, json_true());
	json_array_foreach ((json_t *)array, i, e)
		json_object_foreach (e, key, v)
			if (json_string_length(v) > CELL_MAX)
				json_object_del(keys, key);
	return keys;
}

/* What is no column, one line each. */
static void show_rest(const json_t *array, const json_t *keys)
{
	const char *key;
	json_t *v, *e;
	size_t i;

	json_array_foreach ((json_t *)array, i, e) {
		json_object_foreach (e, key, v) {
			char cell[1024];

			if (json_object_get(keys, key) || json_is_array(v))
				continue;
			show(key, v, cell, sizeof(cell));
			printf("  [%zu] %s: %s\n", i, key, cell);
		}
	}
}

static void show_array(const json_t *array)
{
	json_t *keys = columns(array), *v, *e;
	struct text_table t;
	const char *key;
	size_t i;

	text_table_init(&t, (uint32_t)json_object_size(keys), 0);
	if (json_object_size(keys) >= 1 && json_object_size(keys) <= TEXT_COLS_MAX) {
		json_object_foreach (keys, key, v)
			text_table_add(&t, "%s", key);
		json_array_foreach ((json_t *)array, i, e) {
			json_object_foreach (keys, key, v) {
				char cell[256];

				show(key, json_object_get(e, key), cell, sizeof(cell));
				text_table_add(&t, "%s", cell);
			}
		}
		(void)!text_table_print(&t, stdout, 2);
	}
	show_rest(array, keys);
	json_decref(keys);
}

/* A section: an object's plain members, then the arrays in it. */
static void show_section(const char *name, const json_t *v)
{
	const char *key;
	json_t *member;

	printf("\n%s\n", name);
	if (json_is_array(v)) {
		show_array(v);
		return;
	}
	show_members(v, NULL);
	json_object_foreach ((json_t *)v, key, member)
		if (json_is_array(member))
			show_array(member);
}

static void show_configuration(const json_t *sections)
{
	const char *section, *key;
	struct text_table t;
	json_t *keys, *v;

	puts("\nconfiguration");
	text_table_init(&t, 2, 0);
	json_object_foreach ((json_t *)sections, section, keys) {
		json_object_foreach (keys, key, v) {
			text_table_add(&t, "%s.%s", section, key);
			text_table_add(&t, "%s", json_is_string(v) ? json_string_value(v) : "");
		}
	}
	(void)!text_table_print(&t, stdout, 2);
}

static void show_status(const json_t *root, bool all)
{
	const char *key;
	json_t *v;

	puts("daemon");
	show_members(root, "sections");
	json_object_foreach ((json_t *)root, key, v)
		if ((json_is_object(v) || json_is_array(v)) && strcmp(key, "configuration") != 0)
			show_section(key, v);
	if (all)
		show_configuration(json_object_get(root, "configuration"));
}

static int status(const char *socket, bool json, bool all)
{
	struct call call = {socket, "/status", NULL, -1, NULL, NULL};
	struct errbuf err = {"", 0};
	struct call_reply reply;
	json_t *root;
	int code = 0;

	if (call_run(&call, &reply, &err) < 0)
		return client_fail(&err);
	root = json_loadb(reply.body ? reply.body : "", reply.len, 0, NULL);
	if (!json_is_object(root))
		code = client_fail_with(EXIT_SOFTWARE_ERR, "/status is not a JSON object");
	else if (json)
		printf("%s\n", reply.body);
	else
		show_status(root, all);
	json_decref(root);
	call_reply_fini(&reply);
	return code;
}

int cmd_status(const struct client *client, const struct client_cmd *self, int argc, char **argv)
{
	bool json = false, all = false;
	const struct opt table[] = {
		{"json", 0, NULL, OPT_FLAG, &json, 0, 0, "as the daemon sends it"},
		{"all", 'a', NULL, OPT_FLAG, &all, 0, 0, "the configuration in force as well"},
	};
	char socket[CONF_STR_MAX];
	struct errbuf err = {"", 0};
	int rest, ret = opts_parse(self, table, ARRAY_LEN(table), argc, argv, &rest);

	if (ret != 0)
		return ret < 0 ? EXIT_USAGE_ERR : 0;
	if (rest < argc)
		return client_fail_with(
			EXIT_USAGE_ERR, "status: %s: no argument is needed", argv[rest]);
	if (client_socket(client, socket, &err) < 0)
		return client_fail(&err);
	return status(socket, json, all);
}
