/*
 * fixture.h: what Hugging Face says of a random checkpoint, as tests/reference/make_fixtures.py
 * wrote it: NAME.json and NAME.bin in tests/data/model. The checkpoint itself is made on the spot.
 */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/util.h"

/* One place where a layer leaves something out: an indexer, or a router that goes by scores. */
enum fixture_site_kind { FIXTURE_INDEX, FIXTURE_ROUTE };

struct fixture_site {
	enum fixture_site_kind kind;
	uint32_t layer;
	const uint16_t *set; /* [length] fixture_fold of the chosen; 0 where nothing was left out */
	const uint16_t *gap; /* [length] IEEE halves: see fixture_gap */
};

struct fixture_greedy {
	uint32_t token;
	float margin; /* to the second, in log-probability */
};

struct fixture_prompt {
	uint32_t length;
	uint32_t *ids;
	const float *next;          /* [length - 1] log-probability of ids[t + 1] */
	const uint16_t *best;       /* [length] */
	const float *margin;        /* [length] */
	struct fixture_site *sites; /* [site_n], in the order of the network */
	uint32_t site_n;
	struct fixture_greedy *greedy;
	uint32_t greedy_n;
};

struct fixture {
	const char *name;
	char dir[64]; /* the checkpoint, in a temporary directory */
	json_t *doc;
	bool qat; /* numerics = qat, else plain */
	uint32_t vocab, layers, topk;
	uint32_t worlds[8], world_n;
	struct fixture_prompt *prompts;
	uint32_t prompt_n;
	void *data;
};

/* Reads the fixture and writes its checkpoint; fails the running test when either cannot be. */
struct fixture *fixture_open(const char *name);
void fixture_close(struct fixture *f);

/* Distance of the worst chosen score from the best left out, relative to the row's largest. */
float fixture_gap(const struct fixture_site *site, uint32_t pos);

/* The fold of n chosen entries or experts, in any order. */
uint16_t fixture_fold(const uint32_t *chosen, uint32_t n);

#endif
