#include "coordinator/stopstr.h"

#include <stdlib.h>
#include <string.h>

/*
 * A node stands for a beginning of some string: `depth` bytes that end at `end` in the copied text.
 * Children are a linked list: at most as many as there are strings.
 */
struct stop_node {
	uint32_t child, sibling; /* 0: none (the root is nobody's child) */
	uint32_t fail;           /* node of the longest proper end that begins a string */
	uint32_t depth;
	uint32_t end;   /* offset in text, one past this beginning */
	int32_t string; /* longest string that ends here, or -1 */
	uint8_t byte;
};

struct stop_set {
	struct stop_node *nodes;
	uint32_t node_n;
	char *text; /* all strings, one after the other */
	uint32_t *lens;
};

struct stop_set *stop_set_free(struct stop_set *set)
{
	if (set) {
		free(set->nodes);
		free(set->text);
		free(set->lens);
		free(set);
	}
	return NULL;
}

static uint32_t stop_child(const struct stop_set *set, uint32_t node, uint8_t byte)
{
	uint32_t at = set->nodes[node].child;

	while (at && set->nodes[at].byte != byte)
		at = set->nodes[at].sibling;
	return at;
}

static uint32_t stop_next(const struct stop_set *set, uint32_t state, uint8_t byte)
{
	uint32_t to;

	while (!(to = stop_child(set, state, byte)) && state)
		state = set->nodes[state].fail;
	return to;
}

static void stop_insert(struct stop_set *set, uint32_t start, uint32_t len, int32_t string)
{
	uint32_t node = 0, to, i;
	uint8_t byte;

	for (i = 0; i < len; i++) {
		byte = (uint8_t)set->text[start + i];
		to = stop_child(set, node, byte);
		if (!to) {
			to = set->node_n++;
			set->nodes[to] = (struct stop_node){
				.sibling = set->nodes[node].child,
				.depth = i + 1,
				.end = start + i + 1,
				.string = -1,
				.byte = byte,
			};
			set->nodes[node].child = to;
		}
		node = to;
	}
	/* the same string twice: the first is the one reported */
	if (set->nodes[node].string < 0)
		set->nodes[node].string = string;
}

/* Breadth first, so that a node's fail link, which is shallower, is ready before it. */
static int stop_link(struct stop_set *set)
{
	uint32_t *queue = malloc(set->node_n * sizeof(*queue));
	uint32_t head = 0, tail = 0, node, at;
	struct stop_node *n;

	if (!queue)
		return -ENOMEM;
	queue[tail++] = 0;
	while (head < tail) {
		node = queue[head++];
		for (at = set->nodes[node].child; at; at = n->sibling) {
			n = &set->nodes[at];
			n->fail = node ? stop_next(set, set->nodes[node].fail, n->byte) : 0;
			/* the string that ends at the node itself is the longest */
			if (n->string < 0)
				n->string = set->nodes[n->fail].string;
			queue[tail++] = at;
		}
	}
	free(queue);
	return 0;
}

int stop_set_new(const struct stop_string *strings, size_t n, struct stop_set **ret_set)
{
	struct stop_set *set = calloc(1, sizeof(*set));
	size_t total = 0, i;
	uint32_t at = 0;
	int ret = -ENOMEM;

	if (!set)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		if (!strings[i].len || strings[i].len > (1u << 24)) {
			ret = -EINVAL;
			goto fail;
		}
		total += strings[i].len;
	}
	set->nodes = calloc(total + 1, sizeof(*set->nodes));
	set->text = malloc(total + 1);
	set->lens = calloc(n + 1, sizeof(*set->lens));
	if (!set->nodes || !set->text || !set->lens)
		goto fail;
	set->node_n = 1;
	set->nodes[0].string = -1;
	for (i = 0; i < n; i++) {
		memcpy(set->text + at, strings[i].text, strings[i].len);
		set->lens[i] = (uint32_t)strings[i].len;
		stop_insert(set, at, set->lens[i], (int32_t)i);
		at += set->lens[i];
	}
	ret = stop_link(set);
	if (ret)
		goto fail;
	*ret_set = set;
	return 0;
fail:
	stop_set_free(set);
	return ret;
}

void stop_scan_init(struct stop_scan *scan, const struct stop_set *set)
{
	*scan = (struct stop_scan){.set = set};
}

size_t stop_scan_held(const struct stop_scan *scan)
{
	return scan->set->nodes[scan->state].depth;
}

int stop_scan_feed(struct stop_scan *scan, const char *text, size_t len, bool armed,
	struct outbuf *out, size_t *ret_used)
{
	const struct stop_set *set = scan->set;
	/* What is held back lies in the set's own text at first; later its end lies in `text`. The
	 * unsent bytes are therefore old[0..old_len) followed by text[sent..i]. */
	const struct stop_node *node = &set->nodes[scan->state];
	const char *old = set->text + node->end - node->depth;
	size_t old_len = node->depth, sent = 0, i, keep, go, part;

	for (i = 0; i < len; i++) {
		scan->state = stop_next(set, scan->state, (uint8_t)text[i]);
		node = &set->nodes[scan->state];
		if (armed && node->string >= 0)
			keep = set->lens[node->string];
		else
			keep = node->depth;
		go = old_len + (i + 1 - sent) - keep;
		part = MIN(go, old_len);
		outbuf_add(out, old, part);
		old += part;
		old_len -= part;
		/* whole runs of plain text leave in one piece, below */
		if (armed && node->string >= 0) {
			outbuf_add(out, text + sent, go - part);
			if (ret_used)
				*ret_used = i + 1;
			return node->string;
		}
		if (keep && go > part) {
			outbuf_add(out, text + sent, go - part);
			sent += go - part;
		}
	}
	keep = set->nodes[scan->state].depth;
	go = old_len + (len - sent) - keep;
	part = MIN(go, old_len);
	outbuf_add(out, old, part);
	outbuf_add(out, text + sent, go - part);
	return -1;
}

void stop_scan_finish(struct stop_scan *scan, struct outbuf *out)
{
	const struct stop_node *node = &scan->set->nodes[scan->state];

	outbuf_add(out, scan->set->text + node->end - node->depth, node->depth);
	scan->state = 0;
}
