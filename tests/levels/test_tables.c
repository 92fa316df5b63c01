/* SPDX-License-Identifier: Apache-2.0 */
/* Tables in memory that really cannot be written: refused before anything is touched, or called through a
 * wrapped copy. */
#include "checks.h"

#include <sys/mman.h>
#include <unistd.h>

enum { TABLE_BYTES = N_NET_OPS * sizeof(amp_fn) };

/* A rig whose table is read only; the program calls through net.table, which is the copy. */
struct rom {
    struct rig rig;
    amp_fn *table;
};

/* A page with these bytes that nobody can write to. */
static void *read_only_page(const void *bytes, size_t n) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    memcpy(page, bytes, n);
    ck_assert_int_eq(mprotect(page, 4096, PROT_READ), 0);
    return page;
}

static void rom_init(struct rom *rom) {
    rig_init(&rom->rig, FAKE_RETAINS);
    struct net *net = &rom->rig.net;
    rom->table = read_only_page(net->original, TABLE_BYTES);
    for (size_t i = 0; i < N_NET_OPS; i++) {
        net->ops[i].slot = &rom->table[i];
        net->ops[i].flags |= AMP_OP_COPY;
    }
}

static void rom_start(struct rom *rom, amp_level level) {
    rom_init(rom);
    rig_wire(&rom->rig, config_of(level));
    ck_ok(amp_wrap_table(rom->rig.context, rom->table, TABLE_BYTES, rom->rig.net.table));
}

static void rom_end(struct rom *rom) {
    struct net *net = &rom->rig.net;
    ck_assert_mem_eq(rom->table, net->original, TABLE_BYTES);
    memcpy(net->table, net->original, TABLE_BYTES); /* copies stay wrapped: rig_end looks for the originals */
    rig_end(&rom->rig);
    munmap(rom->table, 4096);
}
#define ROM(name) __attribute__((cleanup(rom_end))) struct rom name
#define ROM_START(name, level) ROM(name); rom_start(&name, level)

/* ---- training through a copy ---- */

TEST_TIMES(training_through_a_copy_is_training_in_place, 6) {
    struct rig plain;
    struct rom rom;
    amp_op_stats stats[2][N_NET_OPS];
    double values[2][NET_SIZE];
    size_t n;
    for (int copied = 0; copied < 2; copied++) { /* one after the other: fakenet knows one net at a time */
        struct rig *rig = copied ? &rom.rig : &plain;
        if (copied) rom_start(&rom, (amp_level)(AMP_O0 + _i));
        else rig_start(&plain, (amp_level)(AMP_O0 + _i), FAKE_RETAINS);
        for (int i = 0; i < 5; i++) ck_ok(net_train_step(&rig->net, 0.5));
        stats[copied][0] = (amp_op_stats)AMP_OP_STATS_INIT;
        ck_ok(amp_get_op_stats(rig->context, stats[copied], N_NET_OPS, &n));
        for (int i = 0; i < NET_SIZE; i++) values[copied][i] = fake_get(rig->net.weight, i);
        if (copied) rom_end(&rom);
        else rig_end(&plain);
    }
    ck_assert_mem_eq(values[0], values[1], sizeof values[0]);
    ck_assert_uint_eq(n, N_NET_OPS);
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_eq(stats[0][i].calls, stats[1][i].calls);
        ck_assert_uint_eq(stats[0][i].passed, stats[1][i].passed);
        ck_assert_uint_eq(stats[0][i].casts, stats[1][i].casts);
        ck_assert_uint_eq(stats[0][i].cache_hits, stats[1][i].cache_hits);
        ck_assert_int_eq(stats[0][i].wrapped, stats[1][i].wrapped);
    }
    if (_i == 1 || _i == 4) ck_assert_uint_gt(stats[1][OP_linear].casts, 0); /* O1, O4 */
}

TEST(copies_outlive_their_contexts_and_serve_the_next) {
    ROM_START(rom, AMP_O1);
    ck_assert_int_eq(rig_linear_gets(&rom.rig), AMP_FLOAT16);
    ck_ok(amp_shutdown(rom.rig.context));
    ck_assert_int_eq(rig_linear_gets(&rom.rig), AMP_FLOAT32);
    rig_wire(&rom.rig, config_of(AMP_O4)); /* the same table: the old copy is as good as a new one */
    ck_assert_int_eq(rig_linear_gets(&rom.rig), AMP_BFLOAT16);
    amp_fn again[N_NET_OPS];
    ck_ok(amp_wrap_table(rom.rig.context, rom.table, TABLE_BYTES, again));
    ck_assert_mem_eq(again, rom.rig.net.table, TABLE_BYTES);
}

/* The host goes on calling through a copy: its wrapper may not become that of another slot with the same function. */
TEST(an_idle_copy_is_nobody_elses_wrapper) {
    const amp_config config = config_of(AMP_O1);
    ROM_START(rom, AMP_O1);
    ck_ok(amp_shutdown(rom.rig.context));
    amp_fn other = rom.rig.net.original[OP_linear];
    amp_op op = rom.rig.net.ops[OP_linear];
    op.slot = &other, op.flags = 0;
    amp_model *model = &SIZED(amp_model, .host = &rom.rig.host.hooks, .ops = &op, .n_ops = 1);
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &rom.rig.context));
    ck_assert(other != rom.rig.net.original[OP_linear]);
    ck_assert_int_eq(rig_linear_gets(&rom.rig), AMP_FLOAT32);
}

TEST(a_copy_that_nobody_made_is_reported) {
    ROM(rom);
    rom_init(&rom);
    rom.rig.net.model.flags = 0;
    rig_wire(&rom.rig, config_of(AMP_O1));
    ck_ok(net_train_step(&rom.rig.net, 0.5)); /* through net.table, which has the originals */
    ck_assert_uint_eq(rom.rig.host.events[AMP_EVENT_WARNING], 1);
    ck_warned(&rom.rig, "linear");
    ck_warned(&rom.rig, "AMP_OP_COPY");
}

/* ---- what a copy holds ---- */

struct vtable { /* one of a C++-like host: data and functions, odd sizes */
    char name[11];
    int32_t version;
    amp_fn forward, unused, step;
    char tail[3];
};

TEST(a_struct_with_data_around_its_slots) {
    struct rig rig;
    rig_init(&rig, FAKE_RETAINS);
    const struct vtable written = { "layer", 7, rig.net.original_forward, rig.net.original_step,
                                    rig.net.original_step, "ab" };
    struct vtable *rom = read_only_page(&written, sizeof written);
    rig.net.forward_op.slot = &rom->forward;
    rig.net.step_op.slot = &rom->step;
    rig.net.forward_op.flags = rig.net.step_op.flags = AMP_OP_COPY;
    rig_wire(&rig, CONFIG(AMP_O2, .loss_scale = 8.0f)); /* nothing overflows */

    struct vtable copy;
    char bytes[1 + sizeof copy]; /* a copy that is not even aligned */
    ck_ok(amp_wrap_table(rig.context, rom, sizeof *rom, &copy));
    ck_ok(amp_wrap_table(rig.context, rom, sizeof *rom, bytes + 1));
    ck_assert_mem_eq(bytes + 1, &copy, sizeof copy);
    ck_assert_str_eq(copy.name, "layer");
    ck_assert_int_eq(copy.version, 7);
    ck_assert(copy.unused == rig.net.original_step);
    ck_assert_str_eq(copy.tail, "ab");
    ck_assert(copy.forward != rig.net.original_forward && copy.step != rig.net.original_step);
    amp_fn one = NULL;
    ck_ok(amp_wrap_table(rig.context, &rom->step, sizeof one, &one));
    ck_assert(one == copy.step);

    rig.net.forward = copy.forward; /* the program calls through the copy */
    rig.net.step = copy.step;
    ck_ok(net_train_step(&rig.net, 0.5));
    ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT32); /* O2: the step gets masters */
    ck_assert_int_eq(rig.host.log[0].dtypes[0], AMP_FLOAT16);
    rig.net.forward = rig.net.original_forward;
    rig.net.step = rig.net.original_step;
    rig_end(&rig);
    munmap(rom, 4096);
}

/* The bytes end within a slot: what is there of it is copied, and nothing is written behind. */
TEST(a_slot_that_the_bytes_cut_is_no_slot) {
    struct rom rom;
    rom_start(&rom, AMP_O1);
    enum { CUT = sizeof(amp_fn) + sizeof(amp_fn) / 2 };
    unsigned char copy[2 * sizeof(amp_fn)];
    amp_fn first;
    memset(copy, 0xa5, sizeof copy);
    ck_ok(amp_wrap_table(rom.rig.context, rom.table, CUT, copy));
    memcpy(&first, copy, sizeof first);
    ck_assert(first == rom.rig.net.table[0] && first != rom.table[0]);
    ck_assert_mem_eq(copy + sizeof first, (unsigned char *)rom.table + sizeof first, CUT - sizeof first);
    for (size_t i = CUT; i < sizeof copy; i++) ck_assert_uint_eq(copy[i], 0xa5);
    rom_end(&rom);
}

/* ---- refusals ---- */

TEST(what_cannot_be_copied_is_refused) {
    struct rom rom;
    rom_start(&rom, AMP_O1);
    amp_context *context = rom.rig.context;
    amp_fn *table = rom.table, copy[N_NET_OPS] = { NULL };
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_wrap_table(NULL, table, TABLE_BYTES, copy));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_wrap_table(context, NULL, TABLE_BYTES, copy));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_wrap_table(context, table, TABLE_BYTES, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_wrap_table(context, table, SIZE_MAX, copy));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_wrap_table(context, table, TABLE_BYTES, table));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "overlap", amp_wrap_table(context, table, TABLE_BYTES, table + 1));
    ck_fails(AMP_ERR_NOT_FOUND, amp_wrap_table(context, table, sizeof(amp_fn) - 1, copy)); /* a part of a slot */
    ck_fails(AMP_ERR_NOT_FOUND, amp_wrap_table(context, table, 0, copy));
    ck_fails(AMP_ERR_NOT_FOUND, amp_wrap_table(context, rom.rig.net.original, TABLE_BYTES, copy)); /* another table */
    ck_says("AMP_OP_COPY");
    static const amp_fn read_only[N_NET_OPS] = { NULL };
    ck_fails(AMP_ERR_READ_ONLY, amp_wrap_table(context, table, TABLE_BYTES, (void *)(uintptr_t)read_only));
    for (size_t i = 0; i < N_NET_OPS; i++) ck_assert(copy[i] == NULL);
    rom_end(&rom);

    RIG_START(rig, AMP_O1, FAKE_RETAINS); /* wired in place: nothing to copy */
    ck_fails(AMP_ERR_NOT_FOUND, amp_wrap_table(rig.context, rig.net.table, TABLE_BYTES, copy));
}

TEST(flags_that_contradict_each_other_are_refused) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_relu].flags = AMP_OP_COPY | AMP_OP_DIRECT;
    rig.net.ops[OP_relu].slot = NULL;
    ck_refused(AMP_ERR_CONFLICT, "AMP_OP_COPY", rig_try(&rig, config_of(AMP_O1)));
    rig.net.ops[OP_relu].flags = 0;
    rig.net.ops[OP_relu].slot = &rig.net.table[OP_relu];
}

/* One slot of many lies in read-only memory, the last one wired: none is written. */
TEST_TIMES(one_read_only_slot_leaves_all_untouched, 2) {
    struct rig rig;
    rig_init(&rig, FAKE_RETAINS);
    amp_fn *step = read_only_page(&rig.net.original_step, sizeof *step);
    rig.net.step_op.slot = step;
    ck_refused(AMP_ERR_READ_ONLY, "step step", rig_try(&rig, config_of((amp_level)(_i ? AMP_O4 : AMP_O1))));
    ck_says("amp_wrap_table");
    ck_assert(net_slots_restored(&rig.net));
    ck_assert_ptr_null(rig.net.model.amp);
    ck_assert(*step == rig.net.original_step);
    rig_end(&rig);
    munmap(step, 4096);
}
