// SPDX-License-Identifier: Apache-2.0
//! The loss scaler and FP32 masters alone, for frameworks that keep their own tensors: they are borrowed for one call.
use crate::config::Config;
use crate::context::{Action, Context};
use crate::error::{check, Error, Result};
use crate::matmul::{Elements, ElementsMut};
use crate::model::{Model, Optimizer};
use crate::sys;
use crate::values::{Param, Values};
use std::cell::Cell;

/// A loss scaler over borrowed gradients, with any mode and setting of `Config`:
///
/// ```ignore
/// let mut scaler = Scaler::new(&Config::new(Level::O1))?;
/// loop {
///     let mut pass = scaler.begin()?;
///     let loss = forward() * pass.scale();
///     let mut gradients = backward(loss);                      // [&mut [f32]]
///     pass.unscale(&mut gradients)?;
///     if pass.end()? == Action::Step { update(&gradients) }
/// }
/// ```
pub struct Scaler {
    context: Context,
    optimizer: Optimizer,
    mark: Param, // its gradient is finite where all that a pass unscaled is
}

impl Scaler {
    /// Levels that scale are O1 and O2. With `check_finite` the others skip overflows too.
    pub fn new(config: &Config) -> Result<Scaler> {
        let mut model = Model::new();
        let mark = model.param("gradients", [1.0]);
        let optimizer = model.optimizer(&[mark]);
        let context = model.initialize(&config.clone().emulate(config.retypes()))?;
        Ok(Scaler { context, optimizer, mark })
    }

    /// Begins an iteration. Dropped without `end`, by `?` or a panic, it changes nothing.
    pub fn begin(&mut self) -> Result<Pass<'_>> {
        let scale = self.context.record(0)?.scale_after;
        Ok(Pass { scaler: self, scale, finite: true, asked: Cell::new(scale == 1.0), unscales: 0, seen: Vec::new() })
    }

    /// The scale of the next pass.
    pub fn scale(&self) -> Result<f32> {
        Ok(self.context.record(0)?.scale_after)
    }

    /// Counters, messages, checkpoints (`to_bytes`, `load_bytes`) of the context behind it.
    pub fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    fn decide(&mut self, scale: f32, finite: bool) -> Result<Action> {
        let mut bracket = self.context.scale_loss(self.optimizer)?;
        let seed = bracket.seed_factor();
        bracket.grad_mut(self.mark)[0] = if finite { seed } else { f32::NAN };
        if seed != scale {
            bracket.cancel()?;
            return Err(Error::new(sys::AMP_ERR_WRONG_STATE, format!(
                "the loss scale is {seed} now, and was {scale} when the pass began: load checkpoints between passes")));
        }
        bracket.end()?;
        let action = self.context.step(self.optimizer, |_| ())?;
        self.context.zero_grad(self.optimizer);
        Ok(action)
    }
}

/// An iteration: from the scaled loss to the decision.
#[must_use = "a pass that does not end decides nothing"]
pub struct Pass<'a> {
    scaler: &'a mut Scaler,
    scale: f32,
    finite: bool,
    asked: Cell<bool>, // for the scale
    unscales: usize,
    seen: Vec<(usize, usize)>, // addresses of what is unscaled in place
}

impl Pass<'_> {
    /// What the loss, or backward's seed, is to be multiplied with.
    #[must_use = "gradients are divided by it"]
    pub fn scale(&self) -> f32 {
        self.asked.set(true);
        self.scale
    }

    /// Divides gradients by the scale, in place, and looks whether they are finite: all at once, or some at a time.
    /// What lies where this pass has unscaled is refused, so keep unscaled gradients until `end`.
    pub fn unscale(&mut self, gradients: &mut [&mut [f32]]) -> Result<()> {
        let spans: Vec<_> = gradients.iter_mut().map(|gradient| span_mut(&mut ElementsMut::Full(gradient))).collect();
        self.scale_list(&spans, &spans)?;
        self.seen.extend(spans.iter().map(range));
        Ok(())
    }

    /// The same from 16 bits (or FP32) into FP32, where nothing is lost.
    pub fn unscale_to(&mut self, to: &mut [&mut [f32]], from: &[Elements<'_>]) -> Result<()> {
        let to: Vec<_> = to.iter_mut().map(|gradient| span_mut(&mut ElementsMut::Full(gradient))).collect();
        let from: Vec<_> = from.iter().map(span).collect();
        same_lengths("gradients", &to, &from)?;
        self.scale_list(&to, &from)
    }

    fn scale_list(&mut self, to: &[sys::amp_span], from: &[sys::amp_span]) -> Result<()> {
        let old = |from| self.seen.iter().any(|seen| seen.0 < range(from).1 && range(from).0 < seen.1);
        if let Some(index) = from.iter().position(old) {
            return Err(Error::new(sys::AMP_ERR_WRONG_STATE,
                                  format!("gradient {index} is unscaled already: once in a pass is enough")));
        }
        if !self.asked.get() {
            return Err(Error::new(sys::AMP_ERR_WRONG_STATE,
                                  "nobody asked for `scale`: these gradients were not multiplied by it".to_owned()));
        }
        self.unscales += 1;
        let mut found = 0.0;
        // SAFETY: slices of these lengths, those written borrowed from nobody else
        check(unsafe { sys::amp_scale_list(to.as_ptr(), from.as_ptr(), to.len(), 1.0 / self.scale, &mut found) })?;
        self.finite &= found == 0.0;
        Ok(())
    }

    /// Were all gradients finite until now?
    pub fn is_finite(&self) -> bool {
        self.finite
    }

    /// Decides, and moves the scale. After `Action::Skip` the gradients are to be dropped. Without an `unscale` it is
    /// an error, and decides nothing.
    pub fn end(self) -> Result<Action> {
        if self.unscales == 0 {
            return Err(Error::new(sys::AMP_ERR_WRONG_STATE,
                                  "no gradient was unscaled in this pass, so that none was looked at".to_owned()));
        }
        self.scaler.decide(self.scale, self.finite)
    }
}

/// FP32 masters of a framework's 16-bit weights.
pub struct Masters {
    values: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    rounded: Vec<u16>, // scratch
}

impl Masters {
    /// Copies of the weights, widened.
    pub fn new(weights: &[Elements<'_>]) -> Result<Masters> {
        let lengths = || weights.iter().map(|weight| vec![0.0; span(weight).size as usize]).collect();
        let mut masters = Masters { values: lengths(), gradients: lengths(), rounded: Vec::new() };
        masters.reload(weights)?;
        Ok(masters)
    }

    /// Takes the weights' values: after the program wrote them, as from a checkpoint.
    pub fn reload(&mut self, weights: &[Elements<'_>]) -> Result<()> {
        cast(&spans_mut(&mut self.values), &weights.iter().map(span).collect::<Vec<_>>())
    }

    /// For checkpoints, and to start from FP32 values. `write` rounds them into the weights.
    pub fn values(&mut self) -> &mut [Vec<f32>] {
        &mut self.values
    }

    /// Rounds the masters into the weights.
    pub fn write(&mut self, weights: &mut [ElementsMut<'_>]) -> Result<()> {
        let to: Vec<_> = weights.iter_mut().map(span_mut).collect();
        cast(&to, &spans_mut(&mut self.values))
    }

    /// Ends a pass: unscales the weights' gradients into FP32, and unless the scaler skips (for one that is not finite,
    /// at O1, O2 and with `check_finite`) calls `update` with masters and gradients, and rounds the masters into the
    /// weights. Weights that are not their masters rounded were written
    /// by somebody: an error, before anything changes.
    pub fn step(&mut self, mut pass: Pass<'_>, gradients: &[Elements<'_>], weights: &mut [ElementsMut<'_>],
                update: impl FnOnce(&mut [Vec<f32>], &[Vec<f32>])) -> Result<Action> {
        self.check_unchanged(weights)?;
        let mut unscaled: Vec<_> = self.gradients.iter_mut().map(Vec::as_mut_slice).collect();
        pass.unscale_to(&mut unscaled, gradients)?;
        let action = pass.end()?;
        if action == Action::Step {
            update(&mut self.values, &self.gradients);
            self.write(weights)?;
        }
        Ok(action)
    }

    fn check_unchanged(&mut self, weights: &mut [ElementsMut<'_>]) -> Result<()> {
        let spans: Vec<_> = weights.iter_mut().map(span_mut).collect();
        same_lengths("weights", &spans_mut(&mut self.values), &spans)?;
        for (index, (weight, master)) in weights.iter().zip(&mut self.values).enumerate() {
            let same = match weight {
                ElementsMut::Full(values) => bits(values).eq(bits(master)),
                ElementsMut::Low(dtype, bits) => {
                    self.rounded.resize(bits.len(), 0);
                    cast(&[span_mut(&mut ElementsMut::Low(*dtype, &mut self.rounded))],
                         &[span(&Elements::Full(master))])?;
                    self.rounded[..] == bits[..]
                }
            };
            if !same {
                return Err(Error::new(sys::AMP_ERR_CONFLICT, format!(
                    "weight {index} is not its master, rounded: after writing weights call `reload`, after writing \
                     masters `write`")));
            }
        }
        Ok(())
    }
}

fn bits(values: &[f32]) -> impl Iterator<Item = u32> + '_ {
    values.iter().map(|value| value.to_bits())
}

// ---- lists ----

fn span(elements: &Elements<'_>) -> sys::amp_span {
    let (dtype, data, length) = elements.parts();
    sys::amp_span { data: data as *mut _, size: length as u64, dtype, reserved: 0 }
}

fn span_mut(elements: &mut ElementsMut<'_>) -> sys::amp_span {
    let (dtype, data, length) = elements.parts();
    sys::amp_span { data, size: length as u64, dtype, reserved: 0 }
}

fn range(span: &sys::amp_span) -> (usize, usize) {
    let size = if span.dtype == sys::AMP_FLOAT32 { 4 } else { 2 };
    (span.data as usize, span.data as usize + span.size as usize * size)
}

fn spans_mut(values: &mut [Vec<f32>]) -> Vec<sys::amp_span> {
    values.iter_mut().map(|values| span_mut(&mut ElementsMut::Full(values))).collect()
}

fn same_lengths(what: &str, to: &[sys::amp_span], from: &[sys::amp_span]) -> Result<()> {
    if to.len() != from.len() {
        return Err(Error::invalid(format!("{} {what} for {}", from.len(), to.len())));
    }
    match to.iter().zip(from).position(|(to, from)| to.size != from.size) {
        Some(i) => Err(Error::invalid(format!("{what}: number {i} has {} elements, not {}", from[i].size, to[i].size))),
        None => Ok(()),
    }
}

fn cast(to: &[sys::amp_span], from: &[sys::amp_span]) -> Result<()> {
    same_lengths("weights", to, from)?;
    // SAFETY: slices of these lengths, those written borrowed from nobody else
    check(unsafe { sys::amp_cast_list(to.as_ptr(), from.as_ptr(), to.len()) })
}
