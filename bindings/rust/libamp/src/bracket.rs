// SPDX-License-Identifier: Apache-2.0
use crate::context::{action, Action, Context};
use crate::error::{check, Result};
use crate::model::Optimizer;
use crate::sys;
use crate::values::{sealed, Kept, Store, Values};

/// What is left to a later bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    None,
    /// unscaling: gradients stay scaled (`AMP_DELAY_UNSCALE`)
    Unscale,
    /// the decision (`AMP_DELAY_OVERFLOW_CHECK`)
    OverflowCheck,
}

/// The stretch of backward. `end` closes it; where it ends otherwise, by `?` or a panic, it is cancelled: gradients are
/// then what they were before it.
#[must_use = "a bracket that is not used ends at once, and is cancelled"]
pub struct Bracket<'a> {
    context: &'a mut Context,
    scaled: Option<Kept<sys::amp_scaled_loss>>, // None: closed
}

impl<'a> Bracket<'a> {
    pub(crate) fn begin(context: &'a mut Context, optimizers: &[Optimizer], loss: u32, delay: Delay) -> Result<Self> {
        let optimizers = optimizers.iter().map(|&optimizer| context.optimizer(optimizer)).collect::<Result<Vec<_>>>()?;
        let flags = match delay {
            Delay::None => 0,
            Delay::Unscale => sys::AMP_DELAY_UNSCALE,
            Delay::OverflowCheck => sys::AMP_DELAY_OVERFLOW_CHECK,
        };
        let scaled = Kept::new(Box::new(sys::amp_scaled_loss::init()));
        // SAFETY: the optimizers are the context's. Where a bracket is forgotten, its scaled loss stays for ever
        check(unsafe {
            sys::amp_scale_loss_begin_many(context.settled(), optimizers.as_ptr(), optimizers.len(), loss, flags,
                                           std::ptr::null_mut(), scaled.get())
        })?;
        Ok(Bracket { context, scaled: Some(scaled) })
    }

    fn scaled(&self) -> *mut sys::amp_scaled_loss {
        self.scaled.as_ref().map_or(std::ptr::null_mut(), Kept::get)
    }

    fn close(&mut self) -> Option<Kept<sys::amp_scaled_loss>> {
        self.context.settled();
        self.scaled.take()
    }

    /// What backward's seed is to be multiplied with: the loss scale, but 1 where an op has a `seed`. Who asks says
    /// that it multiplies: where nobody asked, `end` says so.
    #[must_use = "to ask says that backward's seed is multiplied with it"]
    pub fn seed_factor(&self) -> f32 {
        // SAFETY: open as long as self is
        unsafe { sys::amp_seed_factor(self.scaled()) }
    }

    /// The scale that the gradients carry.
    pub fn scale(&self) -> f32 {
        // SAFETY: in the host's memory, for buffers are
        unsafe { *(*self.scaled()).scale }
    }

    /// Unscales the gradients, and decides. The bracket is closed whatever this returns.
    pub fn end(mut self) -> Result<Action> {
        let scaled = self.close().expect("open until it is ended");
        // SAFETY: begun, and closed once
        check(unsafe { sys::amp_scale_loss_end(scaled.get()) })?;
        // SAFETY: ours
        Ok(action(unsafe { (*scaled.get()).action }))
    }

    /// As if backward had not happened.
    pub fn cancel(mut self) -> Result<()> {
        let scaled = self.close().expect("open until it is ended");
        // SAFETY: begun, and closed once
        check(unsafe { sys::amp_scale_loss_cancel(scaled.get()) })
    }
}

impl Drop for Bracket<'_> {
    fn drop(&mut self) {
        if let Some(scaled) = self.close() {
            // SAFETY: begun, and closed once
            unsafe { sys::amp_scale_loss_cancel(scaled.get()) };
        }
    }
}

impl sealed::Owner for Bracket<'_> {
    fn store(&self) -> &Store {
        self.context.store()
    }
}

impl Values for Bracket<'_> {}

/// The stretch of an update.
pub struct Step<'a> {
    context: &'a mut Context,
    optimizer: Option<*mut sys::amp_optimizer>, // None: ended
}

impl<'a> Step<'a> {
    pub(crate) fn begin(context: &'a mut Context, optimizer: Optimizer) -> Result<(Self, Action)> {
        let (optimizer, mut info) = (context.optimizer(optimizer)?, sys::amp_step_info::init());
        // SAFETY: the optimizer is the context's
        context.alone(|_| unsafe { sys::amp_step_begin(optimizer, &mut info) })?;
        Ok((Step { context, optimizer: Some(optimizer) }, action(info.action)))
    }

    /// Once; later calls do nothing.
    fn close(&mut self) -> Result<()> {
        self.optimizer.take().map_or(Ok(()), |optimizer| {
            // SAFETY: begun, and ended once
            self.context.alone(|_| unsafe { sys::amp_step_end(optimizer) })
        })
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.close()
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl sealed::Owner for Step<'_> {
    fn store(&self) -> &Store {
        self.context.store()
    }
}

impl Values for Step<'_> {}
