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
/// Each buffer has a role, a name and its extents, expressions over the numbers behind the `;`:
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
            { pub(super) const LOW: [$crate::sys::amp_fn; 2] = [None, None]; } }
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
                    let mut lengths = lengths($($crate::op::Number::extent($n)),*);
                    low_body($dtype, $(unsafe { $crate::__role!(slice $role $x, lengths.next()) },)+ $($n),*)
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
                Some(std::mem::transmute::<Low, unsafe extern "C" fn()>(fp16 as Low)),
                Some(std::mem::transmute::<Low, unsafe extern "C" fn()>(bf16 as Low)),
            ] };
        } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __op {
    (($(#[$meta:meta])*) ($vis:vis) $op:ident ($($role:ident $x:ident [$($dim:expr),+])+) ($($n:ident $t:ty)*)
     $body:block { $($low:tt)* }) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $op($($x: $crate::__role!(safe $role),)+ $($n: $t),*) {
            let mut lengths = $op::lengths($($crate::op::Number::extent($n)),*);
            $($crate::op::check_length(concat!(stringify!($op), ": ", stringify!($x)), $x.len(), lengths.next(),
                                       stringify!($($dim),+));)+
            let running = $crate::op::running();
            // SAFETY: the slot holds what has this prototype, and the slices are as long as it takes them to be
            unsafe { $op::SLOT.get()($($crate::__role!(pointer $role $x),)+ $($n),*) };
            drop(running);
            $crate::op::resume();
        }

        #[allow(unused_imports, unused_unsafe, clippy::too_many_arguments)]
        $vis mod $op {
            use super::*;

            type Function = unsafe extern "C" fn($($crate::__role!(raw $role),)+ $($t),*);
            pub(super) static SLOT: $crate::op::Slot<Function> = $crate::op::Slot::new(original);

            fn body($($x: $crate::__role!(safe $role),)+ $(#[allow(unused_variables)] $n: $t),*) $body

            unsafe extern "C" fn original($($x: $crate::__role!(raw $role),)+ $($n: $t),*) {
                $crate::op::guarded(|| {
                    let mut lengths = lengths($($crate::op::Number::extent($n)),*);
                    body($(unsafe { $crate::__role!(slice $role $x, lengths.next()) },)+ $($n),*)
                });
            }

            /// Of the buffers, one after the other, as libamp computes them: in 64 bits.
            pub(super) fn lengths($(#[allow(unused_variables)] $n: i64),*) -> impl Iterator<Item = usize> {
                [$($crate::op::extent(&[$($dim),+])),+].into_iter()
            }
            $($low)*

            /// What libamp is told of it.
            pub fn op() -> $crate::op::Op {
                let buffers = [$(concat!($crate::__role!(schema $role), " ", stringify!($x), "[",
                                         stringify!($($dim),+), "]").to_owned()),+];
                let numbers: &[String] =
                    &[$(format!("{} {}", <$t as $crate::op::Number>::NAME, stringify!($n))),*];
                let schema = format!("{}({}) -> void", stringify!($op), [&buffers[..], numbers].concat().join(", "));
                // SAFETY: the schema comes from the tokens that the function comes from
                unsafe { $crate::op::Op::new(stringify!($op), schema, SLOT.address(), LOW) }
            }
        }
    };
}

/// What a role is: a slice, a pointer, a word of the schema.
#[doc(hidden)]
#[macro_export]
macro_rules! __role {
    (safe read) => { &[f32] };
    (safe seed) => { &[f32] };
    (safe keep) => { &[f32] };
    (safe ints) => { &[i32] };
    (safe $role:ident) => { &mut [f32] };
    (raw read) => { *const f32 };
    (raw seed) => { *const f32 };
    (raw keep) => { *const f32 };
    (raw ints) => { *const i32 };
    (raw $role:ident) => { *mut f32 };
    (low read) => { &[u16] };
    (low seed) => { &[u16] };
    (low out) => { &mut [u16] };
    (low $role:ident) => { $crate::__role!(safe $role) };
    (low_raw read) => { *const u16 };
    (low_raw seed) => { *const u16 };
    (low_raw out) => { *mut u16 };
    (low_raw $role:ident) => { $crate::__role!(raw $role) };
    (pointer out $x:ident) => { $x.as_mut_ptr() };
    (pointer add $x:ident) => { $x.as_mut_ptr() };
    (pointer keep_mut $x:ident) => { $x.as_mut_ptr() };
    (pointer $role:ident $x:ident) => { $x.as_ptr() };
    (slice out $x:ident, $length:expr) => { $crate::op::slice_mut($x, $length) };
    (slice add $x:ident, $length:expr) => { $crate::op::slice_mut($x, $length) };
    (slice keep_mut $x:ident, $length:expr) => { $crate::op::slice_mut($x, $length) };
    (slice $role:ident $x:ident, $length:expr) => { $crate::op::slice($x, $length) };
    (schema read) => { "float" };
    (schema out) => { "float(out a!)" };
    (schema add) => { "float(a!)" };
    (schema seed) => { "float(seed)" };
    (schema keep) => { "float(keep)" };
    (schema keep_mut) => { "float(keep)" };
    (schema ints) => { "int32" };
}
