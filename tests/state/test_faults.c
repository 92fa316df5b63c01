/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the system does to a save or a load: each allocation fails once, each call on the file fails once, writes come
 * up short or are interrupted. The old file stays, no other is left, nothing changes; and memory stays within its
 * bound.
 */
#include "place.h"

#include <errno.h>
#include <unistd.h>

/* A state with one more tensor of zeros, which is no parameter's. */
static struct bytes with_foreign(const struct bytes *state, size_t bytes) {
    char entry[200];
    uint64_t length;
    memcpy(&length, state->data, 8);
    const size_t begin = AMP__CRC_AT + 34, data = state->size - 8 - (size_t)length;
    size_t end = 8 + (size_t)length;
    while (state->data[end - 1] == ' ') end--;
    const int added = snprintf(entry, sizeof entry,
                               ",\"x.exp_avg\":{\"dtype\":\"F32\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}}",
                               bytes / 4, data, data + bytes);
    char *rest = malloc(end + (size_t)added);
    memcpy(rest, state->data + begin, end - 1 - begin);
    memcpy(rest + end - 1 - begin, entry, (size_t)added);
    struct bytes result = forge(rest, end - 1 - begin + (size_t)added, data + bytes);
    memcpy(result.data + result.size - data - bytes, state->data + state->size - data, data);
    forge_checksums(&result);
    free(rest);
    return result;
}

TEST(each_allocation_of_a_save) {
    PLACE(place);
    unsigned long n = 1;
    for (;; n++) {
        const struct snapshot before = snap(&place.rig);
        fail_none();
        const size_t used = in_use;
        allocation_fails_at = n;
        const amp_status status = amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS);
        allocation_fails_at = 0;
        ck_assert_msg(in_use == used, "allocation %lu: %zu bytes leaked", n, in_use - used);
        ck_still(&place.rig, &before);
        if (status == AMP_OK) break;
        ck_assert_msg(status == AMP_ERR_NO_MEMORY, "allocation %lu: %s", n, amp_last_error());
        still_old(&place, "allocation", n);
    }
    ck_assert_uint_gt(n, 100);
    ck_assert(holds(&place, &place.fresh));
}

TEST_TIMES(each_allocation_of_a_load, 3) {
    PLACE(place);
    OWN_BYTES text = state_of(&place.rig, AMP_STATE_APEX);
    const struct snapshot before = snap(&place.rig);
    unsigned long n = 1;
    for (;; n++) {
        fail_none();
        const size_t used = in_use;
        allocation_fails_at = n;
        const amp_status status = _i == 0   ? amp_state_load(place.rig.context, place.path)
                                  : _i == 1 ? load(&place.rig, &place.old)
                                            : amp_state_load_memory(place.rig.context, text.data, text.size);
        allocation_fails_at = 0;
        ck_assert_msg(in_use == used, "allocation %lu: %zu bytes leaked", n, in_use - used);
        if (status == AMP_OK) break;
        /* the JSON library says "invalid token" where it has no memory for one */
        ck_assert_msg(status == AMP_ERR_NO_MEMORY || status == AMP_ERR_BAD_FILE, "allocation %lu: %s", n,
                      amp_last_error());
        ck_still(&place.rig, &before);
    }
    ck_assert_uint_gt(n, _i == 2 ? 5 : 50);
}

/* The stated bound, with headers made to be dense in whatever costs the parser most. */
TEST(memory_is_bounded_by_the_header) {
    static const struct {
        const char *before, *unit, *after;
        bool numbered;
    } rows[] = {
        { "},\"x\":[", "1,", "1]}", false },
        { "},\"x\":[", "\"\",", "1]}", false },
        { "},\"x\":[", "1.5,", "1]}", false },
        { "},\"x\":[", "{},", "1]}", false },
        { "},\"x\":[", "[],", "1]}", false },
        { "},\"x\":[", "null,", "1]}", false },
        { "},\"x\":{", "\"%d\":1,", "\"y\":1}}", true },
        { "},", "\"%d\":\"\",", "\"y\":1}", true },
        { "", ",\"%d\":\"\"", "}}", true },
        { "},", "\"%d\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]},",
          "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", true },
        { "},\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,0],\"shape\":[", "1,", "0]}}", false },
    };
    PLACE(place);
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
        ck_assert_msg(most - used <= AMP__STATE_MEMORY * state.size + 4096,
                      "row %zu: %zu bytes for a header of %zu: %s", i, most - used, state.size, amp_last_error());
        ck_assert_msg(left == used, "row %zu: %zu, was %zu", i, left, used);
        if (getenv("AMP_TEST_FIGURES"))
            printf("# row %zu: %.1f times the header: %s\n", i, (double)(most - used) / (double)state.size,
                   amp_last_error());
        free(header);
        free(state.data);
    }
}

/* Names of moments that no optimizer here keeps, of any size: summed piece by piece, in a file with holes and in
 * memory. */
TEST(what_is_nobodys_is_never_held) {
    enum { HUGE_BYTES = 24 << 20 };
    PLACE(place);
    char header[1024];
    const size_t length = (size_t)snprintf(header, sizeof header, "%s",
                                           "},\"x.exp_avg\":{\"dtype\":\"F32\",\"shape\":[6291456],"
                                           "\"data_offsets\":[0,25165824]}}");
    OWN_BYTES state = forge(header, length, HUGE_BYTES);
    write_file(place.path, state.data, state.size - HUGE_BYTES);
    ck_assert_int_eq(truncate(place.path, (off_t)state.size), 0);
    for (int from_memory = 0; from_memory < 2; from_memory++) {
        fail_none();
        const size_t used = peak = in_use;
        const amp_status status = from_memory ? amp_state_load_memory(place.rig.context, state.data, state.size)
                                              : amp_state_load(place.rig.context, place.path);
        const size_t most = peak;
        ck_assert_int_ne(status, AMP_OK);
        ck_assert_msg(most - used < 1 << 20, "%zu bytes were held: %s", most - used, amp_last_error());
    }
    /* the same behind what is ours: all of it is summed, so that a byte that changed there is found */
    OWN_BYTES file = with_foreign(&place.old, HUGE_BYTES);
    write_file(place.path, file.data, file.size - HUGE_BYTES);
    ck_assert_int_eq(truncate(place.path, (off_t)file.size), 0);
    for (int damaged = 0; damaged < 2; damaged++) {
        fail_none();
        const size_t used = peak = in_use;
        const amp_status status = amp_state_load(place.rig.context, place.path);
        const size_t most = peak;
        ck_assert_msg(status == (damaged ? AMP_ERR_BAD_FILE : AMP_OK), "%s", amp_last_error());
        ck_assert_msg(most - used < 1 << 20, "%zu bytes were held", most - used);
        FILE *stream = fopen(place.path, "r+b");
        ck_assert_int_eq(fseek(stream, -(HUGE_BYTES / 3), SEEK_END), 0);
        ck_assert_int_eq(fputc(1, stream), 1);
        fclose(stream);
    }
}

/* EIO, or no space left, at the n-th call of each kind: files without names, and _i: a system that has none. */
TEST_TIMES(each_call_fails_once, 2) {
    PLACE(place);
    unsigned failed = 0;
    for (int call = 0; call < N_CALLS; call++)
        for (unsigned long n = 1;; n++) {
            write_file(place.path, place.old.data, place.old.size);
            fail_call(call, n, call == ON_WRITE ? ENOSPC : EIO);
            no_nameless = _i;
            const amp_status status = amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS);
            const bool reached = one_failed();
            fail_none();
            failed += status != AMP_OK;
            /* or too late to take it back, and it says so */
            if (status == AMP_OK || strstr(amp_last_error(), "in place")) {
                ck_assert(status == AMP_OK || call == ON_FSYNC);
                ck_assert(holds(&place, &place.fresh));
                ck_assert_int_eq(strangers(&place), 0);
            } else {
                ck_assert_int_eq(status, AMP_ERR_IO);
                still_old(&place, "call", n);
            }
            if (!reached) break;
        }
    ck_assert_uint_ge(failed, 5); /* the folder's open, a write or more, two syncs, a rename */
}

TEST_TIMES(short_and_interrupted_calls_are_made_again, 2) {
    PLACE(place);
    no_nameless = _i;
    shortened = interrupted = true;
    ck_ok(amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS));
    fail_none();
    ck_assert(holds(&place, &place.fresh));
    const struct snapshot before = snap(&place.rig);
    train_some(&place.rig, 2);
    shortened = interrupted = true;
    ck_ok(amp_state_load(place.rig.context, place.path));
    fail_none();
    ck_still(&place.rig, &before);
    train_some(&place.rig, 1);
    const struct snapshot later = snap(&place.rig);
    fail_call(ON_PREAD, 4, EIO);
    ck_fails(AMP_ERR_IO, amp_state_load(place.rig.context, place.path));
    ck_still(&place.rig, &later);
}
