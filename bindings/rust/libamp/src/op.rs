// SPDX-License-Identifier: Apache-2.0
//! Functions that the policy may see. `op!` makes of one text the function, the place where libamp puts its own, and
//! the schema: what libamp is told of a function is what it is.
use crate::error::{c_string, check, Error, Result};
use crate::sys;
use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::CString;
use std::os::raw::c_char;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A function of `op!` as libamp is told of it.
pub struct Op {
    name: &'static str,
    schema: String,
    slot: *mut sys::amp_fn,
    low: [sys::amp_fn; 2],
    aliases: Option<&'static str>,
    backward_of: Option<&'static str>,
    class: sys::amp_class,
    flags: u32,
}

impl Op {
    /// Further names for the cast lists, separated by commas: `"linear"`.
    #[must_use]
    pub fn aliases(mut self, names: &'static str) -> Op {
        self.aliases = Some(names);
        self
    }

    /// The op whose class it shares.
    #[must_use]
    pub fn backward_of(mut self, name: &'static str) -> Op {
        self.backward_of = Some(name);
        self
    }

    /// `sys::AMP_LOWER`, `AMP_FP32`, `AMP_LEAVE`, ..., whatever the lists say.
    #[must_use]
    pub fn class(mut self, class: sys::amp_class) -> Op {
        self.class = class;
        self
    }

    /// Its low implementation is `matmul`: the gate knows where that gains (`AMP_OP_MATMUL`).
    #[must_use]
    pub fn is_matmul(mut self) -> Op {
        self.flags |= sys::AMP_OP_MATMUL;
        self
    }

    /// It keeps state, draws random numbers or allocates: `AMP_VERIFY` adds no call of it (`AMP_OP_STATEFUL`).
    #[must_use]
    pub fn is_stateful(mut self) -> Op {
        self.flags |= sys::AMP_OP_STATEFUL;
        self
    }

    /// `buffers` are (type, name, extents), `numbers` (type, name). Panics where extents are more than arithmetic: what
    /// means one thing here and another in C, as `!n` does.
    ///
    /// # Safety
    /// They describe the functions in the slot and in `low`. For `op!` alone.
    #[doc(hidden)]
    pub unsafe fn new(name: &'static str, buffers: &[(&str, &str, &str)], numbers: &[(&str, &str)],
                      slot: *mut sys::amp_fn, low: [sys::amp_fn; 2]) -> Op {
        for (_, buffer, extents) in buffers {
            let known = |c: char| c.is_ascii_alphanumeric() || "_+-*/%(), \n".contains(c);
            assert!(extents.chars().all(known), "{name}: {buffer}[{extents}]: extents are made of + - * / % and ()");
        }
        let buffers = buffers.iter().map(|(kind, name, extents)| format!("{kind} {name}[{extents}]"));
        let numbers = numbers.iter().map(|(kind, name)| format!("{kind} {name}"));
        let schema = format!("{name}({}) -> void", buffers.chain(numbers).collect::<Vec<_>>().join(", "));
        Op { name, schema, slot, low, aliases: None, backward_of: None, class: sys::AMP_BY_LIST, flags: 0 }
    }
}

/// An `amp_op` with the texts that it points to.
pub(crate) struct Described {
    pub raw: sys::amp_op,
    _texts: Vec<CString>,
}

pub(crate) fn described(op: &Op) -> Result<Described> {
    let (mut raw, mut texts) = (sys::amp_op::init(), Vec::new());
    raw.name = kept(&mut texts, Some(op.name))?;
    raw.schema = kept(&mut texts, Some(&op.schema))?;
    raw.aliases = kept(&mut texts, op.aliases)?;
    raw.backward_of = kept(&mut texts, op.backward_of)?;
    raw.slot = op.slot;
    raw.op_class = op.class;
    raw.flags = op.flags;
    [raw.fp16, raw.bf16] = op.low;
    Ok(Described { raw, _texts: texts })
}

/// The address of a text of C's, which stays when `texts` grows or moves.
fn kept(texts: &mut Vec<CString>, text: Option<&str>) -> Result<*const c_char> {
    let text = match text {
        Some(text) => c_string(text)?,
        None => return Ok(std::ptr::null()),
    };
    let address = text.as_ptr();
    texts.push(text);
    Ok(address)
}

// ---- what op! is made of ----

#[doc(hidden)]
pub use std::{concat, mem::drop, mem::transmute, option::Option, primitive, stringify};

/// No function for 16-bit elements.
#[doc(hidden)]
pub const NO_LOW: [sys::amp_fn; 2] = [None, None];

/// Where a function pointer is kept that libamp exchanges.
#[doc(hidden)]
pub struct Slot<F>(UnsafeCell<F>);

// SAFETY: it is read and written as one word
unsafe impl<F: Send> Sync for Slot<F> {}

impl<F: Copy> Slot<F> {
    /// # Safety
    /// F is a pointer to a function.
    pub const unsafe fn new(function: F) -> Slot<F> {
        assert!(std::mem::size_of::<F>() == std::mem::size_of::<AtomicPtr<()>>());
        Slot(UnsafeCell::new(function))
    }

    pub fn get(&self) -> F {
        // SAFETY: a pointer to a function has the size of one to data, and F was there, or what libamp made of it
        unsafe {
            let word = (*(self.0.get() as *const AtomicPtr<()>)).load(Ordering::Acquire);
            std::mem::transmute_copy(&word)
        }
    }

    pub fn address(&self) -> *mut sys::amp_fn {
        self.0.get().cast()
    }
}

thread_local! {
    static PANIC: RefCell<Option<Box<dyn Any + Send>>> = const { RefCell::new(None) };
    static DEPTH: Cell<usize> = const { Cell::new(0) }; // ops that run on this thread, one within the other
}

/// Ops run beside each other, on any thread, but not while a context is made or ended, or a step begins or ends. Who
/// waits for that lets no further op begin: so an op must not wait for another thread's op.
static OPS: RwLock<()> = RwLock::new(());

#[doc(hidden)]
pub struct Running(Option<RwLockReadGuard<'static, ()>>);

/// # Safety
/// Dropped by who made it, behind those that were made later: no context ends while there is one.
#[doc(hidden)]
pub unsafe fn running() -> Running {
    let outermost = DEPTH.with(|depth| depth.replace(depth.get() + 1)) == 0;
    Running(outermost.then(|| OPS.read().unwrap_or_else(PoisonError::into_inner)))
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0 = None;
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Makes a call while no op runs; from within one it is refused.
pub(crate) fn alone(call: impl FnOnce() -> sys::amp_status) -> Result<()> {
    if DEPTH.with(Cell::get) > 0 {
        return Err(Error::new(sys::AMP_ERR_WRONG_STATE, "not from within an op".to_owned()));
    }
    let _all = OPS.write().unwrap_or_else(PoisonError::into_inner);
    check(call())
}

/// Runs a function that C called: a panic waits until C has returned. Of several the first one does; what a later one
/// carries may panic when it is dropped, and stays.
#[doc(hidden)]
pub fn guarded(body: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
        PANIC.with(|place| match &mut *place.borrow_mut() {
            Some(_) => std::mem::forget(panic),
            none => *none = Some(panic),
        });
    }
}

#[doc(hidden)]
pub fn resume() {
    if let Some(panic) = PANIC.with(|place| place.borrow_mut().take()) {
        resume_unwind(panic);
    }
}

/// Elements of a buffer; None: its extents are negative, or too large.
#[doc(hidden)]
pub type Length = Option<usize>;

#[doc(hidden)]
pub const fn extent(dims: &[i64]) -> Length {
    let (mut product, mut i) = (1i64, 0);
    while i < dims.len() {
        product = match product.checked_mul(dims[i]) {
            Some(product) if dims[i] >= 0 => product,
            _ => return None,
        };
        i += 1;
    }
    if product as u64 > usize::MAX as u64 { None } else { Some(product as usize) }
}

#[doc(hidden)]
pub const fn count(names: &[&str]) -> usize {
    names.len()
}

/// The lengths of an op's buffers, one after the other.
#[doc(hidden)]
pub struct Lengths<const N: usize>([Length; N], usize);

impl<const N: usize> Lengths<N> {
    pub fn new(lengths: [Length; N]) -> Lengths<N> {
        Lengths(lengths, 0)
    }

    /// None behind the last one too.
    pub fn next(lengths: &mut Lengths<N>) -> Length {
        lengths.1 += 1;
        lengths.0.get(lengths.1 - 1).copied().flatten()
    }
}

#[doc(hidden)]
pub fn check_length<T, const N: usize>(what: &str, slice: &[T], lengths: &mut Lengths<N>, dims: &str) {
    let wanted = Lengths::next(lengths).unwrap_or_else(|| panic!("{what}: [{dims}] is negative, or too large"));
    assert!(slice.len() == wanted, "{what} has {} elements, not [{dims}]: {wanted}", slice.len());
}

#[doc(hidden)]
pub fn pointer<T>(slice: &[T]) -> *const T {
    slice.as_ptr()
}

#[doc(hidden)]
pub fn pointer_mut<T>(slice: &mut [T]) -> *mut T {
    slice.as_mut_ptr()
}

/// # Safety
/// `pointer` has `length` elements, which nobody writes meanwhile.
#[doc(hidden)]
pub unsafe fn slice<'a, T>(pointer: *const T, length: Option<usize>) -> &'a [T] {
    match length {
        None | Some(0) => &[],
        Some(length) => std::slice::from_raw_parts(pointer, length),
    }
}

/// # Safety
/// `pointer` has `length` elements, which nobody else uses meanwhile.
#[doc(hidden)]
pub unsafe fn slice_mut<'a, T>(pointer: *mut T, length: Option<usize>) -> &'a mut [T] {
    match length {
        None | Some(0) => &mut [],
        Some(length) => std::slice::from_raw_parts_mut(pointer, length),
    }
}

mod sealed {
    /// The numbers that libamp's schemas know, and no type of a caller's: its size and its value are believed.
    pub trait Sealed {}
}

/// What a number is called in a schema, and counts in an extent; there is no extent of those that are no integers.
#[doc(hidden)]
pub trait Number: sealed::Sealed {
    const NAME: &'static str;
    fn extent(self) -> i64;
}

macro_rules! numbers {
    ($($type:ty: $name:literal),+) => { $(
        impl sealed::Sealed for $type {}

        impl Number for $type {
            const NAME: &'static str = $name;
            fn extent(self) -> i64 {
                self as i64
            }
        }
    )+ };
}
numbers! { i32: "int32", u32: "uint32", i64: "int64", u64: "uint64", f32: "float", f64: "double" }
