/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the system does to a save or a load: each allocation fails once, each call on the file fails once, writes come up
 * short or are interrupted. The old file stays, no other is left, nothing changes; and memory stays within its bound.
 */
#include "place.h"

#include <errno.h>

START_TEST(each_allocation_of_a_save) {
    struct place place;
    place_init(&place);
    unsigned long n = 1;
    for (;; n++) {
        const struct snapshot before = snap(&place.rig);
        fail_none();
        const size_t used = in_use;
        allocation_fails_at = n;
        const amp_status status = amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS);
        allocation_fails_at = 0;
        ck_assert_msg(in_use == used, "allocation %lu: %zu bytes leaked", n, in_use - used);
        const struct snapshot after = snap(&place.rig);
        ck_assert(same(&before, &after));
        if (status == AMP_OK) break;
        ck_assert_msg(status == AMP_ERR_NO_MEMORY, "allocation %lu: %s", n, amp_last_error());
        still_old(&place, "allocation", n);
    }
    ck_assert_uint_gt(n, 100);
    ck_assert(holds(&place, &place.fresh));
    place_end(&place);
}
END_TEST

START_TEST(each_allocation_of_a_load) {
    struct place place;
    place_init(&place);
    struct bytes text = state_of(&place.rig, AMP_STATE_APEX);
    const struct snapshot before = snap(&place.rig);
    unsigned long n = 1;
    for (;; n++) {
        fail_none();
        const size_t used = in_use;
        allocation_fails_at = n;
        const amp_status status = _i == 0   ? amp_state_load(place.rig.context, place.path)
                                  : _i == 1 ? amp_state_load_memory(place.rig.context, place.old.data, place.old.size)
                                            : amp_state_load_memory(place.rig.context, text.data, text.size);
        allocation_fails_at = 0;
        ck_assert_msg(in_use == used, "allocation %lu: %zu bytes leaked", n, in_use - used);
        if (status == AMP_OK) break;
        /* the JSON library says "invalid token" where it has no memory for one */
        ck_assert_msg(status == AMP_ERR_NO_MEMORY || status == AMP_ERR_BAD_FILE, "allocation %lu: %s", n, amp_last_error());
        const struct snapshot after = snap(&place.rig);
        ck_assert(same(&before, &after));
    }
    ck_assert_uint_gt(n, _i == 2 ? 5 : 50);
    free(text.data);
    place_end(&place);
}
END_TEST

/* The stated bound, with headers made to be dense in whatever costs the parser most. */
START_TEST(memory_is_bounded_by_the_header) {
    static const struct {
        const char *before, *unit, *after;
        bool numbered;
    } rows[] = {
        { "},\"x\":[", "1,", "1]}", false },   { "},\"x\":[", "\"\",", "1]}", false }, { "},\"x\":[", "1.5,", "1]}", false },
        { "},\"x\":[", "{},", "1]}", false },  { "},\"x\":[", "[],", "1]}", false },   { "},\"x\":[", "null,", "1]}", false },
        { "},\"x\":{", "\"%d\":1,", "\"y\":1}}", true }, { "},", "\"%d\":\"\",", "\"y\":1}", true },
        { "", ",\"%d\":\"\"", "}}", true },
        { "},", "\"%d\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]},",
          "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", true },
        { "},\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,0],\"shape\":[", "1,", "0]}}", false },
    };
    struct place place;
    place_init(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *header = malloc(400000), unit[128];
        size_t length = (size_t)sprintf(header, "%s", rows[i].before);
        for (int j = 0; length < 300000; j++) {
            snprintf(unit, sizeof unit, rows[i].unit, j);
            length += (size_t)sprintf(header + length, "%s", rows[i].numbered ? unit : rows[i].unit);
        }
        length += (size_t)sprintf(header + length, "%s", rows[i].after);
        struct bytes state = forge(header, length, 0);
        fail_none();
        const size_t used = peak = in_use;
        const amp_status status = amp_state_load_memory(place.rig.context, state.data, state.size);
        const size_t left = in_use, most = peak; /* before the test framework's own */
        ck_assert_int_eq(status, AMP_ERR_BAD_FILE);
        ck_assert_msg(most - used <= AMP__STATE_MEMORY * state.size + 4096, "row %zu: %zu bytes for a header of %zu: %s", i,
                      most - used, state.size, amp_last_error());
        ck_assert_msg(left == used, "row %zu: %zu, was %zu", i, left, used);
        if (getenv("AMP_TEST_FIGURES"))
            printf("# row %zu: %.1f times the header: %s\n", i, (double)(most - used) / (double)state.size, amp_last_error());
        free(header);
        free(state.data);
    }
    place_end(&place);
}
END_TEST

/* EIO, or no space left, at the n-th call of each kind. */
START_TEST(each_call_fails_once) {
    struct place place;
    place_init(&place);
    unsigned failed = 0;
    for (int call = 0; call < N_CALLS; call++)
        for (unsigned long n = 1;; n++) {
            write_file(place.path, place.old.data, place.old.size);
            fail_none();
            failing = call;
            call_fails_at = n;
            failure = call == ON_WRITE ? ENOSPC : EIO;
            const amp_status status = amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS);
            fail_none();
            if (status == AMP_OK) break;
            failed++;
            ck_assert_int_eq(status, AMP_ERR_IO);
            if (call == ON_FSYNC && n == 2) { /* the folder's: too late to take the file back, and the message says so */
                ck_says("in place");
                ck_assert(holds(&place, &place.fresh));
                ck_assert_int_eq(strangers(&place), 0);
            } else {
                still_old(&place, "call", n);
            }
        }
    ck_assert_uint_ge(failed, 7); /* two opens, a write or more, two syncs, a rename */
    place_end(&place);
}
END_TEST

START_TEST(short_and_interrupted_calls_are_made_again) {
    struct place place;
    place_init(&place);
    shortened = interrupted = true;
    ck_ok(amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS));
    fail_none();
    ck_assert(holds(&place, &place.fresh));
    const struct snapshot before = snap(&place.rig);
    train_some(&place.rig, 2);
    shortened = interrupted = true;
    ck_ok(amp_state_load(place.rig.context, place.path));
    fail_none();
    const struct snapshot after = snap(&place.rig);
    ck_assert(same(&before, &after));
    failing = ON_PREAD;
    call_fails_at = 3;
    failure = EIO;
    train_some(&place.rig, 1);
    const struct snapshot later = snap(&place.rig);
    fail_none();
    failing = ON_PREAD;
    call_fails_at = 4;
    ck_fails(AMP_ERR_IO, amp_state_load(place.rig.context, place.path));
    const struct snapshot unchanged = snap(&place.rig);
    ck_assert(same(&later, &unchanged));
    place_end(&place);
}
END_TEST

int main(void) {
    const struct test tests[] = {
        { each_allocation_of_a_save, 1 },
        { each_allocation_of_a_load, 3 },
        { memory_is_bounded_by_the_header, 1 },
        { each_call_fails_once, 1 },
        { short_and_interrupted_calls_are_made_again, 1 },
    };
    return RUN_TESTS("state faults", tests);
}
