/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists as arguments, and errors as exceptions or statuses. Included by amp.hpp.
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

/* The C++ interface of libamp. */
namespace amp {

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

#ifdef __cpp_exceptions
/* The error of a call of libamp. what(): the text of amp_last_error() then, or of the status. */
class error : public std::runtime_error {
public:
    /* Makes the error of the last call of this thread. */
    explicit error(amp_status status) : std::runtime_error(describe(status)), status_(status) {}

    /* Makes an error with its own text. */
    error(amp_status status, const std::string &what) : std::runtime_error(what), status_(status) {}

    /* Returns the status of the call. */
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
    /* The return type of calls without a value. */
    using result = void;
    /* The return type of calls with a value. */
    template <class T> using value = T;
    /* True if constructors can fail. */
    static constexpr bool throws = true;
    /* Ends a call without a value; throws if it failed. */
    static void done(amp_status status) {
        if (status != AMP_OK) throw error(status);
    }
    /* Ends a call with a value; throws if it failed. */
    template <class T> static T give(amp_status status, T got) {
        done(status);
        return got;
    }
    /* Throws an error that only the C++ interface detects. */
    template <class T> static T refuse(amp_status status, const char *what, T) { throw error(status, what); }
};
#endif

/* A status, with a value if the status is AMP_OK. */
template <class T> struct outcome {
    /* status of the call */
    amp_status status;
    /* result of the call, or its initial value after an error */
    T value;
    /* Returns true after success. */
    explicit operator bool() const noexcept { return status == AMP_OK; }
};

/* Errors as statuses. */
struct statuses {
    /* The return type of calls without a value. */
    using result = amp_status;
    /* The return type of calls with a value. */
    template <class T> using value = outcome<T>;
    /* True if constructors can fail. */
    static constexpr bool throws = false;
    /* Ends a call without a value: returns its status. */
    static amp_status done(amp_status status) noexcept { return status; }
    /* Ends a call with a value: returns status and value. */
    template <class T> static outcome<T> give(amp_status status, T got) { return {status, std::move(got)}; }
    /* Returns an error that only the C++ interface detects. */
    template <class T> static outcome<T> refuse(amp_status status, const char *, T got) {
        return {status, std::move(got)};
    }
};

#ifdef __cpp_exceptions
/* Exceptions, or statuses in programs compiled without them. */
using default_errors = throwing;
#else
/* Exceptions, or statuses in programs compiled without them. */
using default_errors = statuses;
#endif

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* Borrowed elements in one block: of a vector, an array or a braced list. */
template <class T> class span {
public:
    /* Makes an empty span. */
    constexpr span() noexcept = default;
    /* Makes a span of `size` elements at `data`. */
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /* Makes a span of a C array. */
    template <std::size_t N> constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    /* Makes a span of a braced list, which is valid during the call. */
    constexpr span(std::initializer_list<std::remove_const_t<T>> list) noexcept : size_(list.size()) {
        data_ = list.begin();
    }
    /* Makes a span of any container with data() and size(). */
    template <class C, class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<C &>().data()), T *>>>
    constexpr span(C &&container) noexcept : data_(container.data()), size_(container.size()) {}
    /* Returns the address of the first element. */
    constexpr T *data() const noexcept { return data_; }
    /* Returns the number of elements. */
    constexpr std::size_t size() const noexcept { return size_; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* Models of one context. */
using models = span<amp_model *const>;
/* Optimizers of one context or one bracket. */
using optimizers = span<amp_optimizer *const>;

/* Returns a structure of amp.h as its _INIT macro makes it: amp::make<amp_op>(). */
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

/* Returns the configuration of a level with its defaults. Change members before use. */
inline amp_config config(amp_level level) noexcept {
    amp_config made = AMP_CONFIG_INIT;
    made.level = level;
    return made;
}

/* Calls amp_level_from_name: amp::level("O1"). */
template <class Errors = default_errors> typename Errors::template value<amp_level> level(const char *name) {
    amp_level found = 0;
    const amp_status status = amp_level_from_name(name, &found);
    return Errors::give(status, found);
}

/* Calls amp_register. Before the context is made. */
template <class Errors = default_errors>
typename Errors::result register_op(amp_model &model, const char *op, amp_class op_class) {
    return Errors::done(amp_register(&model, op, op_class));
}

} // namespace amp

#endif /* AMP_RESULT_HPP */
