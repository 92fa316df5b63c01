// SPDX-License-Identifier: Apache-2.0
// What translated kernels (translate.py) are made of: a thread's view of its grid, memory that is looked at before it
// is touched, and a GPU's arithmetic where C++ leaves it open.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#pragma GCC diagnostic ignored "-Wunused-label"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace emulator {

// ---- grids, blocks, threads

enum State { ENDED, WAITS };
struct Thread;

struct Parameter {
    int offset, bytes;
};

struct Kernel {
    const char *name;
    State (*call)(Thread &thread, void *registers);
    size_t registers; // bytes of a thread's, which outlive a barrier; 0: it has none
    const Parameter *parameters;
    int n_parameters, parameter_bytes;
    uint32_t shared_bytes;
};

// Makes a file's kernels known, by their names.
struct Registered {
    Registered(const Kernel *kernels, size_t n);
};

struct Grid {
    const Kernel *kernel;
    uint32_t blocks, threads; // threads: of a block
    unsigned char parameters[4096];
};

// Who touched a byte of shared memory last, and between which barriers.
struct Touched {
    uint64_t written, read;
    uint32_t writer, reader;
    bool atomic;
};

struct Block {
    Grid *grid;
    uint32_t index;
    bool any, any_next; // of a barrier that reduces
    uint64_t began, now; // barriers, counted through all blocks
    unsigned char *shared;
    Touched *touched;
};

struct Thread {
    Block *block;
    uint32_t thread;

    // Where the bytes are, once they may be read, written, or updated atomically.
    const unsigned char *read_global(uint64_t address, unsigned n);
    unsigned char *write_global(uint64_t address, unsigned n);
    unsigned char *update_global(uint64_t address, unsigned n);
    const unsigned char *read_shared(uint64_t offset, unsigned n);
    unsigned char *write_shared(uint64_t offset, unsigned n);
    unsigned char *update_shared(uint64_t offset, unsigned n);

private:
    unsigned char *global(uint64_t address, unsigned n, const char *does, bool reads, bool writes);
    Touched *shared(uint64_t offset, unsigned n, const char *does);
    [[noreturn]] void fault(const char *what, const char *does, uint64_t address, unsigned n) const;
};

// ---- values

template <typename To, typename From> inline To of_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <size_t BYTES> struct Bits;
template <> struct Bits<4> { using type = uint32_t; };
template <> struct Bits<8> { using type = uint64_t; };

// A register's bits as a type: floats are not converted.
template <typename To, typename From> inline To as(From from) {
    if constexpr (std::is_same_v<To, From>) return from;
    else if constexpr (std::is_floating_point_v<To> && !std::is_floating_point_v<From>)
        return of_bits<To>(static_cast<typename Bits<sizeof(To)>::type>(from));
    else if constexpr (!std::is_floating_point_v<To> && std::is_floating_point_v<From>)
        return static_cast<To>(of_bits<typename Bits<sizeof(From)>::type>(from));
    else return static_cast<To>(from);
}

template <typename T> inline T load(const void *memory) {
    T value;
    memcpy(&value, memory, sizeof value);
    return value;
}
template <typename T> inline void store(void *memory, T value) { memcpy(memory, &value, sizeof value); }

// Whatever NaN a computation makes, a GPU's is this one.
inline float canonical(float x) { return x != x ? of_bits<float>(0x7fffffffu) : x; }
inline double canonical(double x) { return x != x ? of_bits<double>(uint64_t(0xfff8) << 48) : x; }

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline double flushed(double x) { return std::fabs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x; }
inline float saturated(float x) { return x != x ? 0.0f : x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

float multiply_add_down(float a, float b, float c); // towards minus infinity
inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline double multiply_add(double a, double b, double c) { return std::fma(a, b, c); }

// A device's are off by a few units in the last place.
inline float exponential(float x) { return canonical(std::exp2(x)); }
inline float logarithm(float x) { return canonical(std::log2(x)); }
inline float inverse(float x) { return canonical(1.0f / x); }
inline double inverse(double x) { return of_bits<double>(of_bits<uint64_t>(canonical(1.0 / x)) >> 32 << 32); }

template <typename T> inline T magnitude(T x) {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    else return x < 0 ? as<T>(0 - as<uint64_t>(x)) : x;
}
template <typename T> inline T least(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) return canonical(std::fmin(x, y));
    else return x < y ? x : y;
}
template <typename T> inline T largest(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) return canonical(std::fmax(x, y));
    else return x > y ? x : y;
}

template <typename T> inline T least_or_nan(T x, T y) { return x != x || y != y ? canonical(x + y) : least(x, y); }
template <typename T> inline T largest_or_nan(T x, T y) { return x != x || y != y ? canonical(x + y) : largest(x, y); }

// A function of floats on the halves of two words.
inline uint32_t of_halves(uint32_t x, uint32_t y, float (*widen)(uint16_t), uint16_t (*narrow)(float),
                          float (*function)(float, float)) {
    const auto half = [&](int by) {
        return uint32_t(narrow(function(widen(static_cast<uint16_t>(x >> by)), widen(static_cast<uint16_t>(y >> by)))));
    };
    return half(0) | half(16) << 16;
}

template <typename T> inline T shift_left(T x, uint32_t by) {
    return by >= 8 * sizeof x ? T(0) : static_cast<T>(x << by);
}
template <typename T> inline T shift_right(T x, uint32_t by) {
    if (by >= 8 * sizeof x) return x < 0 ? static_cast<T>(-1) : T(0);
    return static_cast<T>(x >> by);
}
template <typename T> inline T insert(T from, T into, uint32_t at, uint32_t length) {
    const T ones = shift_left(static_cast<T>(shift_left(T(1), length) - 1), at & 0xff);
    return (into & ~ones) | (shift_left(from, at & 0xff) & ones);
}
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = uint64_t(b) << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t which = selector >> (4 * i) & 15;
        const uint8_t byte = static_cast<uint8_t>(both >> (8 * (which & 7)));
        out |= uint32_t(which & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << (8 * i);
    }
    return out;
}
inline uint32_t leading_zeros(uint32_t x) { return x ? __builtin_clz(x) : 32; }
inline uint32_t leading_zeros(uint64_t x) { return x ? __builtin_clzll(x) : 64; }
// As a device that has no trap for it: a division by zero gives all ones, and leaves what was divided.
template <typename T> inline T quotient(T x, T y) {
    if (!y) return static_cast<T>(-1);
    return std::is_signed_v<T> && y == static_cast<T>(-1) ? as<T>(0 - as<uint64_t>(x)) : x / y;
}
template <typename T> inline T remainder_of(T x, T y) {
    if (!y) return x;
    return std::is_signed_v<T> && y == static_cast<T>(-1) ? T(0) : x % y;
}
inline uint32_t high(uint32_t x, uint32_t y) { return static_cast<uint32_t>(uint64_t(x) * y >> 32); }
__extension__ typedef unsigned __int128 Wide;
inline uint64_t high(uint64_t x, uint64_t y) { return static_cast<uint64_t>(static_cast<Wide>(x) * y >> 64); }
inline int32_t high(int32_t x, int32_t y) { return static_cast<int32_t>(int64_t(x) * y >> 32); }

// Towards zero; what does not fit is the nearest that does.
template <typename To, typename From> inline To to_integer(From x) {
    using limits = std::numeric_limits<To>;
    if (x != x) return 0;
    if (x < static_cast<From>(limits::min())) return limits::min();
    if (x >= std::ldexp(From(1), limits::digits)) return limits::max();
    return static_cast<To>(x);
}

// ---- 16-bit floats, to the nearest, ties to even

inline float f16_to_float(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude > 0x7c00u) return canonical(NAN);
    if (magnitude == 0x7c00u) return of_bits<float>(sign | 0x7f800000u);
    const float value = magnitude < 0x0400u ? static_cast<float>(magnitude) * 0x1p-24f
                                            : of_bits<float>((magnitude << 13) + 0x38000000u);
    return of_bits<float>(sign | of_bits<uint32_t>(value));
}
inline uint16_t float_to_f16(float x) {
    const uint32_t bits = of_bits<uint32_t>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (x != x) return 0x7fff;
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u)
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::fabs(x) * 0x1p24f)));
    return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13));
}
inline float bf16_to_float(uint16_t bits) { return of_bits<float>(uint32_t(bits) << 16); }
inline uint16_t float_to_bf16(float x) {
    const uint32_t bits = of_bits<uint32_t>(x);
    return x != x ? 0x7fff : static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

} // namespace emulator
