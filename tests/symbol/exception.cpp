/* SPDX-License-Identifier: Apache-2.0 */
/* An exception and a backtrace pass through a trampoline. */
#include <amp_symbol.h>

#include <cstdio>
#include <unwind.h>

extern "C" int thrower(int value);      /* the trampoline */
extern "C" int real_thrower(int value); /* what its slot holds */
AMP_SYMBOL(thrower_slot, thrower, real_thrower);

static int destroyed;
struct counted {
    ~counted() { destroyed++; }
};

static int caller(int value) {
    counted one;
    (void)one;
    return thrower(value) + 1;
}

/* Which function each of the frames from the thrower on belongs to. */
static void *frames[3];
static _Unwind_Reason_Code note(struct _Unwind_Context *context, void *count) {
    int *n = static_cast<int *>(count);
    if (*n == 3) return _URC_END_OF_STACK;
    frames[(*n)++] = _Unwind_FindEnclosingFunction(reinterpret_cast<void *>(_Unwind_GetIP(context)));
    return _URC_NO_REASON;
}

extern "C" __attribute__((noinline)) int real_thrower(int value) {
    int n = 0;
    _Unwind_Backtrace(note, &n);
    if (value) throw value;
    return value;
}

int main() {
    int (*volatile call)(int) = caller;
    try {
        call(42);
    } catch (int value) {
        const bool direct =
            frames[0] == reinterpret_cast<void *>(real_thrower) && frames[1] == reinterpret_cast<void *>(caller);
        std::printf("caught %d, %d destroyed, %s\n", value, destroyed, direct ? "no frame between" : "a frame between");
        return 0;
    }
    return 1;
}
