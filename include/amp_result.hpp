/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How calls of amp.hpp take lists and tell of errors. Included by amp.hpp.
 */
#ifndef AMP_RESULT_HPP
#define AMP_RESULT_HPP

#include "amp_all.h"

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

/* The C++ side of libamp. */
namespace amp {

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

#ifdef __cpp_exceptions
/* A call of libamp failed: what() is amp_last_error() at that time, or the status's text. */
class error : public std::runtime_error {
public:
    /* From the status of the call that this thread made last. */
    explicit error(amp_status status) : std::runtime_error(describe(status)), status_(status) {}

    /* With words of one's own. */
    error(amp_status status, const std::string &what) : std::runtime_error(what), status_(status) {}

    /* What the call returned. */
    amp_status status() const noexcept { return status_; }

private:
    static std::string describe(amp_status status) {
        const char *text = amp_last_error();
        return std::string(amp_status_name(status)) + ": " + (*text ? text : amp_status_text(status));
    }

    amp_status status_;
};

/* Errors as exceptions. */
struct throwing {
    /* What a call without a value returns. */
    using result = void;
    /* What a call with a value returns. */
    template <class T> using value = T;
    /* Whether constructors may fail. */
    static constexpr bool throws = true;
    /* A call without a value is over. */
    static void done(amp_status status) {
        if (status != AMP_OK) throw error(status);
    }
    /* A call with a value is over. */
    template <class T> static T give(amp_status status, T got) {
        done(status);
        return got;
    }
    /* What only the C++ side sees is refused in its words. */
    template <class T> static T refuse(amp_status status, const char *what, T) { throw error(status, what); }
};
#endif

/* A status and, where it is AMP_OK, a value. */
template <class T> struct outcome {
    /* What the call returned. */
    amp_status status;
    /* What it found; as T makes it where the call failed. */
    T value;
    /* Whether the call succeeded. */
    explicit operator bool() const noexcept { return status == AMP_OK; }
};

/* Errors as statuses. */
struct statuses {
    /* What a call without a value returns. */
    using result = amp_status;
    /* What a call with a value returns. */
    template <class T> using value = outcome<T>;
    /* Whether constructors may fail. */
    static constexpr bool throws = false;
    /* A call without a value is over. */
    static amp_status done(amp_status status) noexcept { return status; }
    /* A call with a value is over. */
    template <class T> static outcome<T> give(amp_status status, T got) { return {status, std::move(got)}; }
    /* What only the C++ side sees is refused. */
    template <class T> static outcome<T> refuse(amp_status status, const char *, T got) {
        return {status, std::move(got)};
    }
};

#ifdef __cpp_exceptions
/* Exceptions where the program is compiled with them. */
using default_errors = throwing;
#else
/* Exceptions where the program is compiled with them. */
using default_errors = statuses;
#endif

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* Borrowed elements of anything that keeps them in one block: a vector, an array, a braced list. */
template <class T> class span {
public:
    /* Nothing. */
    constexpr span() noexcept = default;
    /* `size` elements at `data`. */
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /* A C array. */
    template <std::size_t N> constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    /* A braced list, which lives as long as the call. */
    constexpr span(std::initializer_list<std::remove_const_t<T>> list) noexcept : size_(list.size()) {
        data_ = list.begin();
    }
    /* Whatever has data() and size(). */
    template <class C, class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<C &>().data()), T *>>>
    constexpr span(C &&container) noexcept : data_(container.data()), size_(container.size()) {}
    /* The first. */
    constexpr T *data() const noexcept { return data_; }
    /* How many. */
    constexpr std::size_t size() const noexcept { return size_; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* Models for one context. */
using models = span<amp_model *const>;
/* Optimizers for one context or one bracket. */
using optimizers = span<amp_optimizer *const>;

/* A structure of amp.h as its _INIT macro makes it: amp::make<amp_op>(). */
template <class T> T make() noexcept {
    if constexpr (std::is_same_v<T, amp_host>) return AMP_HOST_INIT;
    else if constexpr (std::is_same_v<T, amp_field>) return AMP_FIELD_INIT;
    else if constexpr (std::is_same_v<T, amp_buffer>) return AMP_BUFFER_INIT;
    else if constexpr (std::is_same_v<T, amp_op>) return AMP_OP_INIT;
    else if constexpr (std::is_same_v<T, amp_struct>) return AMP_STRUCT_INIT;
    else if constexpr (std::is_same_v<T, amp_param>) return AMP_PARAM_INIT;
    else if constexpr (std::is_same_v<T, amp_model>) return AMP_MODEL_INIT;
    else if constexpr (std::is_same_v<T, amp_optimizer>) return AMP_OPTIMIZER_INIT;
    else if constexpr (std::is_same_v<T, amp_config>) return AMP_CONFIG_INIT;
    else if constexpr (std::is_same_v<T, amp_scaled_loss>) return AMP_SCALED_LOSS_INIT;
    else if constexpr (std::is_same_v<T, amp_step_info>) return AMP_STEP_INFO_INIT;
    else if constexpr (std::is_same_v<T, amp_cast_frame>) return AMP_CAST_FRAME_INIT;
    else if constexpr (std::is_same_v<T, amp_master>) return AMP_MASTER_INIT;
    else if constexpr (std::is_same_v<T, amp_op_stats>) return AMP_OP_STATS_INIT;
    else {
        static_assert(std::is_same_v<T, amp_record>, "a structure of amp.h that has an _INIT macro");
        return AMP_RECORD_INIT;
    }
}

/* A level with all its defaults, to be overridden member by member. */
inline amp_config config(amp_level level) noexcept {
    amp_config made = AMP_CONFIG_INIT;
    made.level = level;
    return made;
}

/* amp_level_from_name: amp::level("O1"). */
template <class Errors = default_errors> typename Errors::template value<amp_level> level(const char *name) {
    amp_level found = 0;
    const amp_status status = amp_level_from_name(name, &found);
    return Errors::give(status, found);
}

/* amp_register, before the context is made. */
template <class Errors = default_errors>
typename Errors::result register_op(amp_model &model, const char *op, amp_class op_class) {
    return Errors::done(amp_register(&model, op, op_class));
}

} // namespace amp

#endif /* AMP_RESULT_HPP */
