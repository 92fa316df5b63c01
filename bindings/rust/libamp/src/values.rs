// SPDX-License-Identifier: Apache-2.0
//! Parameters and their gradients: memory that libamp knows by its address. It lies in no value that safe code can move
//! or exchange, and is reached through what has borrowed the context: so no slice of it lives through a call that
//! changes it.
use crate::sys;
use std::os::raw::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory that stays where it is; C holds its address.
pub(crate) struct Kept<T: ?Sized>(*mut T);

// SAFETY: it owns what it points to
unsafe impl<T: ?Sized + Send> Send for Kept<T> {}

impl<T: ?Sized> Kept<T> {
    pub fn new(value: Box<T>) -> Kept<T> {
        Kept(Box::into_raw(value))
    }

    pub fn get(&self) -> *mut T {
        self.0
    }
}

impl<T: ?Sized> Drop for Kept<T> {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nobody else ends it
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Which model parameters and optimizers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64);

impl Identity {
    pub fn new() -> Identity {
        static MODELS: AtomicU64 = AtomicU64::new(0);
        Identity(MODELS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A parameter of a model: its name in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    pub(crate) model: Identity,
    pub(crate) index: usize,
}

/// An `amp_buffer`, which C is given the address of, and how often its elements may have changed. While a slice of them
/// may be written they change all the time.
#[repr(C)]
struct Handle {
    buffer: sys::amp_buffer,
    version: AtomicU64,
    lent: AtomicBool,
}

struct Elements {
    values: Kept<[f32]>,
    handle: Kept<Handle>,
}

// SAFETY: the buffer points to values, which it owns
unsafe impl Send for Elements {}

impl Elements {
    fn new(values: Vec<f32>) -> Elements {
        let (size, values) = (values.len() as i64, Kept::new(values.into_boxed_slice()));
        let mut buffer = sys::amp_buffer::init();
        buffer.data = values.get().cast();
        buffer.size = size;
        let handle = Handle { buffer, version: AtomicU64::new(1), lent: AtomicBool::new(false) };
        Elements { values, handle: Kept::new(Box::new(handle)) }
    }

    fn handle(&self) -> &Handle {
        // SAFETY: it lives as long as self; C writes no part of it
        unsafe { &*self.handle.get() }
    }

    fn read(&self) -> *const [f32] {
        self.settle();
        self.values.get()
    }

    fn write(&self) -> *mut [f32] {
        self.handle().lent.store(true, Ordering::Relaxed);
        self.values.get()
    }

    /// Nobody holds a slice of it any longer.
    fn settle(&self) {
        if self.handle().lent.swap(false, Ordering::Relaxed) {
            self.handle().version.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The hooks of amp_buffer, and versions.
pub(crate) fn host() -> sys::amp_host {
    // SAFETY: static
    let mut host = unsafe { *sys::amp_buffer_host() };
    host.version = Some(version);
    host
}

unsafe extern "C" fn version(_: *mut c_void, tensor: *mut c_void) -> u64 {
    let handle = &*(tensor as *const Handle);
    let lent = handle.lent.load(Ordering::Relaxed);
    handle.version.fetch_add(lent.into(), Ordering::Relaxed)
}

/// Marks what may be written through a master that is a parameter's own block, or has its gradient.
///
/// # Safety
/// It is of a parameter of this module's.
pub(crate) unsafe fn lend(master: &sys::amp_master) {
    let data = &*(master.param as *const Handle);
    let grad = &*(data.buffer.grad as *const Handle); // an optimizer has it
    for (handle, shown) in [(data, master.data), (grad, master.grad)] {
        handle.lent.fetch_or(handle.buffer.data == shown, Ordering::Relaxed);
    }
}

/// A parameter with its gradient.
pub(crate) struct Block {
    pub name: String,
    pub module_kind: i32,
    data: Elements,
    grad: Option<Elements>, // of those that an optimizer has
}

impl Block {
    pub fn new(name: String, module_kind: i32, values: Vec<f32>) -> Block {
        Block { name, module_kind, data: Elements::new(values), grad: None }
    }

    /// What libamp calls it.
    pub fn handle(&self) -> *mut c_void {
        self.data.handle.get().cast()
    }

    pub fn train(&mut self) {
        // SAFETY: the buffer is ours, and libamp does not know it yet
        let buffer = unsafe { &mut (*self.data.handle.get()).buffer };
        let grad = self.grad.get_or_insert_with(|| Elements::new(vec![0.0; buffer.size as usize]));
        buffer.grad = grad.handle.get().cast();
    }

    fn gradient(&self) -> &Elements {
        self.grad.as_ref().unwrap_or_else(|| panic!("{}: no optimizer has it, so it has no gradient", self.name))
    }
}

pub(crate) mod sealed {
    pub struct Store {
        pub(crate) model: super::Identity,
        pub(crate) blocks: Vec<super::Block>,
    }

    pub trait Owner {
        #[doc(hidden)]
        fn store(&self) -> &Store;
    }
}
pub(crate) use sealed::Store;

impl Store {
    fn block(&self, param: Param) -> &Block {
        assert!(param.model == self.model, "a parameter of another model: use what this one's `param` returned");
        &self.blocks[param.index]
    }

    /// The values of each parameter.
    pub fn values(&self) -> Vec<Vec<f32>> {
        // SAFETY: of blocks that nobody writes while self is borrowed
        self.blocks.iter().map(|block| unsafe { (*block.data.read()).to_vec() }).collect()
    }

    /// Whoever has the owner mutably holds no slice.
    pub fn settle(&mut self) {
        for block in &self.blocks {
            block.data.settle();
            block.grad.iter().for_each(Elements::settle);
        }
    }
}

/// The parameters' values and gradients, of a context, in a bracket, in a step.
///
/// Panics where a parameter is another model's, or has no gradient because no optimizer lists it.
pub trait Values: sealed::Owner {
    fn data(&self, param: Param) -> &[f32] {
        // SAFETY: self is borrowed as long as the slice: who changes the memory needs it mutably
        unsafe { &*self.store().block(param).data.read() }
    }

    fn data_mut(&mut self, param: Param) -> &mut [f32] {
        // SAFETY: as above, and nobody else has self
        unsafe { &mut *self.store().block(param).data.write() }
    }

    fn grad(&self, param: Param) -> &[f32] {
        // SAFETY: as data
        unsafe { &*self.store().block(param).gradient().read() }
    }

    fn grad_mut(&mut self, param: Param) -> &mut [f32] {
        // SAFETY: as data_mut
        unsafe { &mut *self.store().block(param).gradient().write() }
    }

    /// Values and gradient.
    fn both_mut(&mut self, param: Param) -> (&mut [f32], &mut [f32]) {
        let block = self.store().block(param);
        // SAFETY: as data_mut; these are two blocks
        unsafe { (&mut *block.data.write(), &mut *block.gradient().write()) }
    }
}
