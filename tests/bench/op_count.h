/*
 * op_count.h: what each op of a running model costs and does: calls, time, multiply-adds, and bytes
 * of weights, attention rows and index keys that it cannot avoid to read. It wraps the table of ops
 * of one rank; products inside hc_coef and hc_head are counted as theirs.
 *
 * Bytes are those of one reading by each call: activations, which stay in cache, are not counted,
 * and rows that several queries of a call share count once.
 */
#pragma once

#include "kernels/kern.h"

struct op_count {
	uint64_t calls, ns;
	double flops, bytes;
};

struct op_counts {
	struct op_count op[KERN_OP__COUNT];
};

/* Wraps the ops, of one table at a time; op_count_remove() puts them back. */
void op_count_install(struct kern_ops *ops, struct op_counts *into);
void op_count_remove(struct kern_ops *ops);
