/* SPDX-License-Identifier: Apache-2.0 */
/* A program in C++ outside the tree. Prints the library's version. */
#include <amp.hpp>

#include <cstdio>

int main() {
    try {
        const amp::context context({}, {}, amp::config(amp::level("O1")));
        if (context.op_target("linear", {AMP_FLOAT32}) != AMP_FLOAT16) return 1;
        amp::level("01");
    } catch (const amp::error &error) {
        if (error.status() == AMP_ERR_INVALID_ARGUMENT) std::puts(amp_version());
        else std::printf("%s\n", error.what());
    }
}
