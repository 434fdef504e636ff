#include "coordinator/timer.h"

/*
 * A tree in which no child is earlier than its parent. `child` is the first child, `next` the next
 * sibling, `prev` the previous sibling or, for a first child, the parent.
 */

static struct loop_timer *meld(struct loop_timer *a, struct loop_timer *b)
{
	struct loop_timer *late;

	if (!a || !b)
		return a ? a : b;
	if (b->when < a->when) {
		late = a;
		a = b;
	} else {
		late = b;
	}
	late->prev = a;
	late->next = a->child;
	if (late->next)
		late->next->prev = late;
	a->child = late;
	return a;
}

/*
 * Joins the siblings from `first` on into one tree: in pairs, then the pairs one after the other.
 * The pairing is what makes the cost logarithmic; done in a loop because there may be thousands.
 */
static struct loop_timer *meld_siblings(struct loop_timer *first)
{
	struct loop_timer *pairs = NULL, *root = NULL, *a, *b;

	while (first) {
		a = first;
		b = a->next;
		first = b ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		a = meld(a, b);
		a->next = pairs;
		pairs = a;
	}
	while (pairs) {
		a = pairs;
		pairs = a->next;
		a->next = NULL;
		root = meld(root, a);
	}
	return root;
}

void timer_insert(struct timer_heap *h, struct loop_timer *t)
{
	t->child = t->next = t->prev = NULL;
	h->root = meld(h->root, t);
}

void timer_remove(struct timer_heap *h, struct loop_timer *t)
{
	struct loop_timer *below = meld_siblings(t->child);

	if (t == h->root) {
		h->root = below;
	} else {
		if (t->prev->child == t)
			t->prev->child = t->next;
		else
			t->prev->next = t->next;
		if (t->next)
			t->next->prev = t->prev;
		h->root = meld(h->root, below);
	}
	t->child = t->next = t->prev = NULL;
}
