/* inspect --verify: widening, ranges, counts, hashes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/verify.h"
#include "tests/unit/ckpt_fixture.h"

static double value(enum ckpt_elem elem, uint64_t bits)
{
	uint8_t row[8];

	memcpy(row, &bits, 8);
	return verify_value(elem, row, 0);
}

static void test_known_codes_widen_exactly(void **state)
{
	const uint8_t fp4[2] = {0xa7, 0x1f}; /* 6, -1, -6, .5: low nibble first */

	(void)state;
	assert_true(value(CKPT_F8_E4M3, 0x7e) == 448);
	assert_true(value(CKPT_F8_E4M3, 0xfe) == -448);
	assert_true(value(CKPT_F8_E4M3, 0x38) == 1);
	assert_true(value(CKPT_F8_E4M3, 0x08) == 0x1p-6);
	assert_true(value(CKPT_F8_E4M3, 0x01) == 0x1p-9);
	assert_true(value(CKPT_F8_E4M3, 0x07) == 7 * 0x1p-9);
	assert_true(isnan(value(CKPT_F8_E4M3, 0x7f)) && isnan(value(CKPT_F8_E4M3, 0xff)));
	assert_true(signbit(value(CKPT_F8_E4M3, 0x80)) && value(CKPT_F8_E4M3, 0x80) == 0);
	assert_true(value(CKPT_F16, 0x7bff) == 65504);
	assert_true(value(CKPT_F16, 0x0001) == 0x1p-24);
	assert_true(value(CKPT_F16, 0xbc00) == -1);
	assert_true(isinf(value(CKPT_F16, 0x7c00)) && isnan(value(CKPT_F16, 0x7c01)));
	assert_true(value(CKPT_BF16, 0x3f80) == 1);
	assert_true(value(CKPT_BF16, 0xc2f7) == -123.5);
	assert_true(isinf(value(CKPT_BF16, 0x7f80)));
	assert_true(value(CKPT_F32, 0x3fc00000) == 1.5);
	assert_true(value(CKPT_I64, (uint64_t)-3) == -3);
	assert_true(value(CKPT_I32, 0xfffffffe) == -2);
	assert_true(verify_value(CKPT_F4_E2M1, fp4, 0) == 6);
	assert_true(verify_value(CKPT_F4_E2M1, fp4, 1) == -1);
	assert_true(verify_value(CKPT_F4_E2M1, fp4, 2) == -6);
	assert_true(verify_value(CKPT_F4_E2M1, fp4, 3) == 0.5);
	assert_true(verify_scale(CKPT_SCALE_E8M0, (const uint8_t *)"\x7f", 0) == 1);
	assert_true(verify_scale(CKPT_SCALE_E8M0, (const uint8_t *)"\0", 0) == 0x1p-127);
	assert_true(isnan(verify_scale(CKPT_SCALE_E8M0, (const uint8_t *)"\xff", 0)));
}

static const struct ckpt_entry *entry(const struct ckpt *ck, enum tensor_kind kind, int layer)
{
	for (size_t i = 0; i < ck->entry_n; i++)
		if (ck->entries[i].kind == kind && ck->entries[i].layer == layer)
			return &ck->entries[i];
	fail_msg("no such entry");
	return NULL;
}

static struct verify_stats look(struct fix_model *m, enum tensor_kind kind, int layer)
{
	struct verify_stats s;
	struct errbuf err = {"", 0};
	struct ckpt *ck = fix_open(m);

	if (verify_entry(ck, entry(ck, kind, layer), &s, &err) < 0)
		fail_msg("%s", err.text);
	ckpt_close(ck);
	return s;
}

/* wo_a is 192 x 512 here: its second row of scale blocks has 64 rows. */
static void test_extremes_of_fp8_are_found_with_their_own_scale(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct fix_tensor *t = fix_find(m, "layers.2.attn.wo_a.weight");
	struct fix_tensor *s = fix_find(m, "layers.2.attn.wo_a.scale");
	struct verify_stats got;

	(void)state;
	memset(t->data, 0x38, t->bytes); /* all 1 */
	memset(s->data, 127, s->bytes);
	s->data[1 * 4 + 2] = 130;             /* rows 128.., columns 256..383: all 8 */
	t->data[130 * 512 + 383] = 0x38 + 8;  /* 2 x 8 */
	t->data[127 * 512 + 300] = 0xb8 + 16; /* -4 x 1: the row above belongs to another block */
	t->data[0] = 0x7f;
	got = look(m, TENSOR_WO_A, 2);
	assert_int_equal(got.n, 192 * 512);
	assert_true(got.max == 16 && got.min == -4);
	assert_int_equal(got.nan, 1);
	assert_int_equal(got.inf + got.bad, 0);
	s->data[7] = 255; /* 64 rows x 128 columns become NaN, one scale is bad */
	got = look(m, TENSOR_WO_A, 2);
	assert_int_equal(got.nan, 1 + 64 * 128);
	assert_int_equal(got.bad, 1);
	fix_free(m);
}

static void test_fp4_bf16_and_ids_are_judged(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct fix_tensor *t = fix_find(m, "layers.0.ffn.experts.0.w2.weight");
	struct fix_tensor *s = fix_find(m, "layers.0.ffn.experts.0.w2.scale");
	struct verify_stats got;
	int64_t id = 8;

	(void)state;
	memset(t->data, 0x22, t->bytes); /* all 1 */
	memset(s->data, 127, s->bytes);
	t->data[3 * 96 + 95] = 0xf2; /* row 3, last column: -6 */
	s->data[3 * 6 + 5] = 128;    /* its scale: 2 */
	got = look(m, TENSOR_EXPERT_W2, 0);
	assert_true(got.min == -12 && got.max == 2);
	t = fix_find(m, "norm.weight");
	memset(t->data, 0, t->bytes);
	memcpy(t->data + 10, "\x80\xff\xc0\x7f", 4); /* -inf, NaN */
	got = look(m, TENSOR_NORM, -1);
	assert_true(got.min == 0 && got.max == 0);
	assert_int_equal(got.nan, 1);
	assert_int_equal(got.inf, 1);
	t = fix_find(m, "layers.1.ffn.gate.tid2eid");
	got = look(m, TENSOR_GATE_TID2EID, 1);
	assert_int_equal(got.bad, 0);
	memcpy(t->data + 16 * 5, &id, 8);
	memcpy(t->data + 16 * 9, t->data + 16 * 9 + 8, 8);
	got = look(m, TENSOR_GATE_TID2EID, 1);
	assert_int_equal(got.bad, 2);
	assert_true(got.max == 8);
	fix_free(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_codes_widen_exactly),
		cmocka_unit_test(test_extremes_of_fp8_are_found_with_their_own_scale),
		cmocka_unit_test(test_fp4_bf16_and_ids_are_judged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
