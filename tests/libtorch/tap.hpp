/* SPDX-License-Identifier: Apache-2.0 */
/* TAP for the tests of bindings/libtorch, and what they have in common. */
#ifndef TAP_HPP
#define TAP_HPP

#include <amp_torch.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace tap {

inline int number = 0, failures = 0;

inline bool good = true;

inline void check(bool condition, const char *text, const char *file, int line) {
    if (condition) return;
    std::printf("# %s:%d: %s\n", file, line, text);
    good = false;
}

/* A test: its failed checks fail it; so does an exception. */
template <class Body> void test(const std::string &what, Body &&body) {
    good = true;
    try {
        body();
    } catch (const std::exception &error) {
        std::printf("# exception: %.400s\n", error.what());
        good = false;
    }
    std::printf("%s %d - %s\n", good ? "ok" : "not ok", ++number, what.c_str());
    std::fflush(stdout);
    failures += !good;
}

inline int done() {
    std::printf("1..%d\n", number);
    return failures != 0;
}

/* Same type, same bits; a NaN equals a NaN of the same bits. */
inline bool same(const at::Tensor &a, const at::Tensor &b) {
    if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
    const at::ScalarType bits = a.element_size() == 2 ? at::kShort : a.element_size() == 8 ? at::kLong : at::kInt;
    return a.detach().contiguous().view(bits).equal(b.detach().contiguous().view(bits));
}

template <class Call> amp_status status_of(Call &&call) {
    try {
        call();
        return AMP_OK;
    } catch (const amp::error &error) {
        return error.status();
    }
}

} // namespace tap

#undef CHECK /* one of torch's */
#define CHECK(condition) tap::check(condition, #condition, __FILE__, __LINE__)

#endif
