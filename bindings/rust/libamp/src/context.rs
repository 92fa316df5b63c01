// SPDX-License-Identifier: Apache-2.0
use crate::bracket::{Bracket, Delay, Step};
use crate::error::{c_string, check, text, Error, Result};
use crate::model::Optimizer;
use crate::op::{alone, slice_mut};
use crate::sys;
use crate::values::{lend, sealed, Kept, Param, Store, Values};
use std::mem::ManuallyDrop;
use std::path::Path;

/// What a bracket decided for the step behind it. An overflow is a decision, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Step,
    Skip,
}

pub(crate) fn action(raw: sys::amp_action) -> Action {
    if raw == sys::AMP_STEP { Action::Step } else { Action::Skip }
}

/// A model that is wired for a level. Its end unwires it, as `shutdown` does, but tells no error.
///
/// It may move to another thread. Ops may be called on any thread: they belong to the only context that wired them, or
/// to the one whose `scope` the thread is in.
pub struct Context {
    raw: *mut sys::amp_context, // NULL: shut down
    held: ManuallyDrop<Held>,
}

/// What C has the addresses of, as long as there is a context.
struct Held {
    store: Store,
    optimizers: Vec<Trained>,
    _model: Kept<sys::amp_model>,
}

/// An optimizer, and what it updates.
pub(crate) struct Trained {
    pub raw: Kept<sys::amp_optimizer>,
    pub params: Vec<Param>,
}

// SAFETY: brackets, steps and the end need it mutably, so they are one thread's at a time
unsafe impl Send for Context {}

impl sealed::Owner for Context {
    fn store(&self) -> &Store {
        &self.held.store
    }
}

impl Values for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.unwire();
        if self.raw.is_null() {
            // SAFETY: C knows nothing of it any longer. A context that ends within an op of its own lives on
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}

/// One parameter as the optimizer sees it.
#[derive(Debug)]
pub struct Master<'a> {
    pub name: String,
    /// the FP32 master, or the parameter itself where it has none
    pub data: &'a mut [f32],
    /// unscaled
    pub grad: Option<&'a mut [f32]>,
    pub is_master: bool,
}

impl Context {
    pub(crate) fn new(raw: *mut sys::amp_context, store: Store, model: Kept<sys::amp_model>,
                      optimizers: Vec<Trained>) -> Context {
        Context { raw, held: ManuallyDrop::new(Held { store, optimizers, _model: model }) }
    }

    /// For calls that look at parameters and gradients, and change them.
    pub(crate) fn settled(&mut self) -> *mut sys::amp_context {
        self.held.store.settle();
        self.raw
    }

    /// The same for calls that may not be made while an op runs.
    pub(crate) fn alone(&mut self, call: impl FnOnce(*mut sys::amp_context) -> sys::amp_status) -> Result<()> {
        let raw = self.settled();
        alone(|| call(raw))
    }

    /// On an error the ops are unwired all the same, but within one of them.
    fn unwire(&mut self) -> Result<()> {
        // SAFETY: it is ours, or NULL; open brackets are cancelled, parameters and optimizers are still there
        let ended = self.alone(|raw| unsafe { sys::amp_shutdown(raw) });
        if ended.as_ref().map_err(Error::status) != Err(sys::AMP_ERR_WRONG_STATE) {
            self.raw = std::ptr::null_mut();
        }
        ended
    }

    fn trained(&self, optimizer: Optimizer) -> Result<&Trained> {
        if optimizer.model != self.held.store.model {
            let words = "an optimizer of another model: use what this one's `optimizer` returned";
            return Err(Error::invalid(words.to_owned()));
        }
        Ok(&self.held.optimizers[optimizer.index])
    }

    pub(crate) fn optimizer(&self, optimizer: Optimizer) -> Result<*mut sys::amp_optimizer> {
        self.trained(optimizer).map(|trained| trained.raw.get())
    }

    /// For what this crate does not have: calls of `sys`.
    pub fn as_ptr(&self) -> *mut sys::amp_context {
        self.raw
    }

    // ---- training ----

    /// Opens the bracket around backward, which starts from `Bracket::seed_factor`.
    pub fn scale_loss(&mut self, optimizer: Optimizer) -> Result<Bracket<'_>> {
        self.scale_losses(&[optimizer], 0, Delay::None)
    }

    /// The same for several optimizers, for one of several losses, for one of several brackets before a step.
    pub fn scale_losses(&mut self, optimizers: &[Optimizer], loss: u32, delay: Delay) -> Result<Bracket<'_>> {
        Bracket::begin(self, optimizers, loss, delay)
    }

    /// Calls `update`, unless the step is to be skipped: there values and gradients are FP32, and gradients unscaled.
    /// Where the step begins but `update` panics, it ends with what was updated until then.
    pub fn step(&mut self, optimizer: Optimizer, update: impl FnOnce(&mut Step<'_>)) -> Result<Action> {
        let (mut step, decided) = Step::begin(self, optimizer)?;
        if decided == Action::Step {
            update(&mut step);
        }
        step.end()?;
        Ok(decided)
    }

    /// Zeroes the gradients of an optimizer's parameters. Panics where it is another model's.
    pub fn zero_grad(&mut self, optimizer: Optimizer) {
        for param in self.trained(optimizer).unwrap_or_else(|error| panic!("{error}")).params.clone() {
            self.grad_mut(param).fill(0.0);
        }
    }

    /// Scales the gradients so that their norm is at most `max_norm`; the norm before. Between a bracket and the step.
    pub fn clip_grad_norm(&mut self, optimizer: Optimizer, max_norm: f32) -> Result<f32> {
        let mut norm = 0.0;
        self.settled();
        // SAFETY: the optimizer is ours
        check(unsafe { sys::amp_clip_grad_norm(self.optimizer(optimizer)?, max_norm, &mut norm) })?;
        Ok(norm)
    }

    pub fn clip_grad_value(&mut self, optimizer: Optimizer, max_value: f32) -> Result<()> {
        self.settled();
        // SAFETY: the optimizer is ours
        check(unsafe { sys::amp_clip_grad_value(self.optimizer(optimizer)?, max_value) })
    }

    /// What the optimizer updates: FP32 masters where there are some.
    pub fn masters(&mut self, optimizer: Optimizer) -> Result<Vec<Master<'_>>> {
        self.settled();
        let (optimizer, mut count) = (self.optimizer(optimizer)?, 0);
        // SAFETY: the optimizer is ours; nothing is written but the count
        check(unsafe { sys::amp_master_params(optimizer, std::ptr::null_mut(), 0, &mut count) })?;
        let mut masters = vec![sys::amp_master::init(); count];
        // SAFETY: as many as there are
        check(unsafe { sys::amp_master_params(optimizer, masters.as_mut_ptr(), count, &mut count) })?;
        // SAFETY: buffers are FP32, compact, each its own, and valid until a call that needs self mutably
        Ok(masters.iter().map(|master| unsafe { Master::new(master) }).collect())
    }

    /// Parameters become their masters, rounded: after masters were written. What was written into parameters is in
    /// their masters at the next step without a word.
    pub fn write_back(&mut self) -> Result<()> {
        // SAFETY: the context is ours
        self.alone(|raw| unsafe { sys::amp_masters_write_back(raw) })
    }

    /// Calls of ops on this thread, in `run`, are this context's, and weights stand still meanwhile.
    pub fn scope<R>(&self, run: impl FnOnce() -> R) -> Result<R> {
        let _inside = Scope::enter(self.raw)?;
        Ok(run())
    }

    // ---- checkpoints, the end ----

    /// Writes scales, configuration and FP32 values, the file as a whole or not at all.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path.as_ref())?;
        // SAFETY: the path lives as long as the call
        self.alone(|raw| unsafe { sys::amp_state_save(raw, path.as_ptr(), sys::AMP_STATE_SAFETENSORS) })
    }

    /// Reads what `save` wrote, checked as a whole before anything changes.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path.as_ref())?;
        // SAFETY: the path lives as long as the call
        self.alone(|raw| unsafe { sys::amp_state_load(raw, path.as_ptr()) })
    }

    pub fn to_bytes(&mut self) -> Result<Vec<u8>> {
        let (format, mut size) = (sys::AMP_STATE_SAFETENSORS, 0);
        // SAFETY: without a buffer it measures; then there is one of that size
        self.alone(|raw| unsafe { sys::amp_state_save_memory(raw, format, std::ptr::null_mut(), 0, &mut size) })?;
        let mut bytes = vec![0u8; size];
        let data = bytes.as_mut_ptr().cast();
        self.alone(|raw| unsafe { sys::amp_state_save_memory(raw, format, data, size, &mut size) })?;
        bytes.truncate(size);
        Ok(bytes)
    }

    pub fn load_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        // SAFETY: so many bytes
        self.alone(|raw| unsafe { sys::amp_state_load_memory(raw, bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Unwires the ops, and gives the parameters back in the order in which the model got them: in FP32, the masters'
    /// values where there were masters.
    pub fn shutdown(mut self) -> Result<Vec<Vec<f32>>> {
        self.unwire()?;
        Ok(self.held.store.values())
    }
}

impl Master<'_> {
    /// # Safety
    /// Its blocks are FP32 and compact, and nobody else uses them as long as the result lives.
    unsafe fn new(raw: &sys::amp_master) -> Self {
        lend(raw);
        let slice = |data: *mut std::os::raw::c_void| slice_mut(data.cast::<f32>(), Some(raw.size as usize));
        let grad = (!raw.grad.is_null()).then(|| slice(raw.grad));
        Master { name: text(raw.name), data: slice(raw.data), grad, is_master: raw.is_master != 0 }
    }
}

struct Scope(sys::amp_scope);

impl Scope {
    fn enter(context: *mut sys::amp_context) -> Result<Scope> {
        let mut scope = sys::amp_scope { v: [0; 4] };
        // SAFETY: it is left when this value ends, which is in the function that made it
        check(unsafe { sys::amp_scope_enter(context, &mut scope) })?;
        Ok(Scope(scope))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // SAFETY: entered once, left once
        unsafe { sys::amp_scope_leave(&mut self.0) };
    }
}

fn c_path(path: &Path) -> Result<std::ffi::CString> {
    c_string(path.to_str().ok_or_else(|| Error::invalid(format!("{path:?} is no UTF-8")))?)
}
