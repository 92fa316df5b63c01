// SPDX-License-Identifier: Apache-2.0
/// Defines a function on slices, and describes it to libamp.
///
/// ```ignore
/// libamp::op! {
///     /// y = x * transposed w
///     pub fn linear(out y: [n, o], read x: [n, c], read w: [o, c]; n: i32, c: i32, o: i32) { ... }
/// }
/// linear(&mut y, &x, &w, 32, 64, 10);          // checks the lengths, and calls through the slot
/// model.op(linear::op());                      // tells libamp of it
/// ```
///
/// Each buffer has a role, a name and its extents: `+ - * / %` and parentheses over literals and the numbers behind the
/// `;`, which are evaluated as a constant function's body is (so twice is the same as once):
///
/// | role | in the function | what it does with it |
/// | --- | --- | --- |
/// | `read` | `&[f32]` | reads it |
/// | `out` | `&mut [f32]` | writes all of it |
/// | `add` | `&mut [f32]` | adds to it, as backward to a gradient |
/// | `seed` | `&[f32]` | starts backward from it: it comes times the loss scale |
/// | `keep`, `keep_mut` | `&[f32]`, `&mut [f32]` | reads, or writes, what is never cast |
/// | `ints` | `&[i32]` | reads class numbers, indices |
///
/// An op does not wait for an op that another thread calls.
///
/// Numbers are `i32`, `u32`, `i64`, `u64`, `f32` and `f64`; in extents the integers are `i64`. A second block,
/// `low(dtype) { ... }`, is the same function for 16-bit elements: `read`, `out` and `seed` are slices of `u16` there,
/// the bits of `dtype` (`AMP_FLOAT16` or `AMP_BFLOAT16`); [`matmul`](crate::matmul) takes them.
#[macro_export]
macro_rules! op {
    ($(#[$meta:meta])* $vis:vis fn $op:ident(
        $($role:ident $x:ident: [$($dim:expr),+]),+ $(,)?; $($n:ident: $t:ty),* $(,)?
    ) $body:block) => {
        $crate::__op! { ($(#[$meta])*) ($vis) $op ($($role $x [$($dim),+])+) ($($n $t)*) $body
            { pub(super) const LOW: [$crate::sys::amp_fn; 2] = $crate::op::NO_LOW; } }
    };
    ($(#[$meta:meta])* $vis:vis fn $op:ident(
        $($role:ident $x:ident: [$($dim:expr),+]),+ $(,)?; $($n:ident: $t:ty),* $(,)?
    ) $body:block low($dtype:ident) $low:block) => {
        $crate::__op! { ($(#[$meta])*) ($vis) $op ($($role $x [$($dim),+])+) ($($n $t)*) $body {
            #[allow(clippy::too_many_arguments)]
            fn low_body($dtype: $crate::sys::amp_dtype, $($x: $crate::__role!(low $role),)+
                        $(#[allow(unused_variables)] $n: $t),*) $low

            unsafe fn low($dtype: $crate::sys::amp_dtype, $($x: $crate::__role!(low_raw $role),)+ $($n: $t),*) {
                $crate::op::guarded(|| {
                    let mut lengths = $crate::op::Lengths::new(lengths($($crate::op::Number::extent($n)),*));
                    low_body($dtype, $(unsafe { $crate::__role!(slice $role $x, &mut lengths) },)+ $($n),*)
                });
            }
            unsafe extern "C" fn fp16($($x: $crate::__role!(low_raw $role),)+ $($n: $t),*) {
                unsafe { low($crate::sys::AMP_FLOAT16, $($x,)+ $($n),*) }
            }
            unsafe extern "C" fn bf16($($x: $crate::__role!(low_raw $role),)+ $($n: $t),*) {
                unsafe { low($crate::sys::AMP_BFLOAT16, $($x,)+ $($n),*) }
            }
            type Low = unsafe extern "C" fn($($crate::__role!(low_raw $role),)+ $($t),*);
            // SAFETY: libamp casts them back to what the schema says
            pub(super) const LOW: [$crate::sys::amp_fn; 2] = unsafe { [
                $crate::op::Option::Some($crate::op::transmute::<Low, unsafe extern "C" fn()>(fp16 as Low)),
                $crate::op::Option::Some($crate::op::transmute::<Low, unsafe extern "C" fn()>(bf16 as Low)),
            ] };
        } }
    };
}

/// Every type, function and macro is named by `$crate`, and no method is called: what the caller's module calls `f32`,
/// `stringify` or `len` is not taken for it. Extents are a `const fn`, which gives the same lengths each time.
#[doc(hidden)]
#[macro_export]
macro_rules! __op {
    (($(#[$meta:meta])*) ($vis:vis) $op:ident ($($role:ident $x:ident [$($dim:expr),+])+) ($($n:ident $t:ty)*)
     $body:block { $($low:tt)* }) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $op($($x: $crate::__role!(safe $role),)+ $($n: $t),*) {
            let mut lengths = $crate::op::Lengths::new($op::lengths($($crate::op::Number::extent($n)),*));
            $($crate::op::check_length($crate::op::concat!($crate::op::stringify!($op), ": ",
                                                           $crate::op::stringify!($x)), &*$x, &mut lengths,
                                       $crate::op::stringify!($($dim),+));)+
            // SAFETY: dropped below, behind the call; the slot holds what has this prototype, and the slices are as long
            // as it takes them to be
            unsafe {
                let running = $crate::op::running();
                $crate::op::Slot::get(&$op::SLOT)($($crate::__role!(pointer $role $x),)+ $($n),*);
                $crate::op::drop(running);
            }
            $crate::op::resume();
        }

        #[allow(unused_imports, unused_unsafe, clippy::too_many_arguments)]
        $vis mod $op {
            use super::*;

            type Function = unsafe extern "C" fn($($crate::__role!(raw $role),)+ $($t),*);
            // SAFETY: a pointer to a function
            pub(super) static SLOT: $crate::op::Slot<Function> = unsafe { $crate::op::Slot::new(original as Function) };

            fn body($($x: $crate::__role!(safe $role),)+ $(#[allow(unused_variables)] $n: $t),*) $body

            unsafe extern "C" fn original($($x: $crate::__role!(raw $role),)+ $($n: $t),*) {
                $crate::op::guarded(|| {
                    let mut lengths = $crate::op::Lengths::new(lengths($($crate::op::Number::extent($n)),*));
                    body($(unsafe { $crate::__role!(slice $role $x, &mut lengths) },)+ $($n),*)
                });
            }

            /// Of the buffers, one after the other, as libamp computes them: in 64 bits.
            pub(super) const fn lengths($(#[allow(unused_variables)] $n: $crate::op::primitive::i64),*)
                -> [$crate::op::Length; $crate::op::count(&[$($crate::op::stringify!($x)),+])] {
                [$($crate::op::extent(&[$($dim),+])),+]
            }
            $($low)*

            /// What libamp is told of it.
            pub fn op() -> $crate::op::Op {
                // SAFETY: the schema comes from the tokens that the function comes from
                unsafe {
                    $crate::op::Op::new(
                        $crate::op::stringify!($op),
                        &[$(($crate::__role!(schema $role), $crate::op::stringify!($x),
                             $crate::op::stringify!($($dim),+))),+],
                        &[$((<$t as $crate::op::Number>::NAME, $crate::op::stringify!($n))),*],
                        $crate::op::Slot::address(&SLOT), LOW)
                }
            }
        }
    };
}

/// What a role is: a slice, a pointer, a word of the schema.
#[doc(hidden)]
#[macro_export]
macro_rules! __role {
    (safe read) => { &[$crate::op::primitive::f32] };
    (safe seed) => { &[$crate::op::primitive::f32] };
    (safe keep) => { &[$crate::op::primitive::f32] };
    (safe ints) => { &[$crate::op::primitive::i32] };
    (safe $role:ident) => { &mut [$crate::op::primitive::f32] };
    (raw read) => { *const $crate::op::primitive::f32 };
    (raw seed) => { *const $crate::op::primitive::f32 };
    (raw keep) => { *const $crate::op::primitive::f32 };
    (raw ints) => { *const $crate::op::primitive::i32 };
    (raw $role:ident) => { *mut $crate::op::primitive::f32 };
    (low read) => { &[$crate::op::primitive::u16] };
    (low seed) => { &[$crate::op::primitive::u16] };
    (low out) => { &mut [$crate::op::primitive::u16] };
    (low $role:ident) => { $crate::__role!(safe $role) };
    (low_raw read) => { *const $crate::op::primitive::u16 };
    (low_raw seed) => { *const $crate::op::primitive::u16 };
    (low_raw out) => { *mut $crate::op::primitive::u16 };
    (low_raw $role:ident) => { $crate::__role!(raw $role) };
    (pointer out $x:ident) => { $crate::op::pointer_mut($x) };
    (pointer add $x:ident) => { $crate::op::pointer_mut($x) };
    (pointer keep_mut $x:ident) => { $crate::op::pointer_mut($x) };
    (pointer $role:ident $x:ident) => { $crate::op::pointer($x) };
    (slice out $x:ident, $lengths:expr) => { $crate::op::slice_mut($x, $crate::op::Lengths::next($lengths)) };
    (slice add $x:ident, $lengths:expr) => { $crate::op::slice_mut($x, $crate::op::Lengths::next($lengths)) };
    (slice keep_mut $x:ident, $lengths:expr) => { $crate::op::slice_mut($x, $crate::op::Lengths::next($lengths)) };
    (slice $role:ident $x:ident, $lengths:expr) => { $crate::op::slice($x, $crate::op::Lengths::next($lengths)) };
    (schema read) => { "float" };
    (schema out) => { "float(out a!)" };
    (schema add) => { "float(a!)" };
    (schema seed) => { "float(seed)" };
    (schema keep) => { "float(keep)" };
    (schema keep_mut) => { "float(keep)" };
    (schema ints) => { "int32" };
}
