// SPDX-License-Identifier: Apache-2.0
//! Automatic mixed precision for trainers in Rust, over libamp's C library. The guide is
//! `docs/start/other-languages.md` of libamp.
//!
//! A [`Model`] has ops, parameters and optimizers; [`Model::initialize`] makes a [`Context`] of it for a [`Level`].
//!
//! ```ignore
//! libamp::op! {
//!     fn linear(out y: [n, o], read x: [n, c], read w: [o, c]; n: i32, c: i32, o: i32) { ... }
//! }
//! let mut model = libamp::Model::new();
//! model.op(linear::op());
//! let w = model.param("weight", initial);
//! let sgd = model.optimizer(&[w]);
//! let mut amp = model.initialize(&Config::new(Level::O1).emulate(true))?;
//! loop {
//!     forward(&amp, ...);
//!     amp.zero_grad(sgd);
//!     let mut bracket = amp.scale_loss(sgd)?;
//!     backward(&mut bracket, bracket.seed_factor(), ...);     // bracket.grad_mut(w)
//!     bracket.end()?;                                         // without it the bracket is cancelled: `?`, a panic
//!     amp.step(sgd, |step| {                                  // is not called where a gradient overflowed
//!         let (w, dw) = step.both_mut(w);
//!         ...
//!     })?;
//! }
//! ```
//!
//! Frameworks with tensors of their own use a [`Scaler`], and [`Masters`] of 16-bit weights, over borrowed slices.
//!
//! # What does not compile
//!
//! A bracket that has ended cannot be ended again, or be cancelled:
//! ```compile_fail,E0382
//! # use libamp::*;
//! fn twice(bracket: Bracket) -> Result<()> {
//!     bracket.end()?;
//!     bracket.cancel()
//! }
//! ```
//! No second bracket begins, and no step, while one is open:
//! ```compile_fail,E0499
//! # use libamp::*;
//! fn step_inside(amp: &mut Context, sgd: Optimizer) -> Result<()> {
//!     let bracket = amp.scale_loss(sgd)?;
//!     amp.step(sgd, |_| ())?;
//!     bracket.end()?;
//!     Ok(())
//! }
//! ```
//! A context cannot end while its bracket is open:
//! ```compile_fail,E0505
//! # use libamp::*;
//! fn shut_down_inside(mut amp: Context, sgd: Optimizer) -> Result<()> {
//!     let bracket = amp.scale_loss(sgd)?;
//!     amp.shutdown()?;
//!     bracket.end()?;
//!     Ok(())
//! }
//! ```
//! Nobody holds a gradient while libamp unscales it:
//! ```compile_fail,E0505
//! # use libamp::*;
//! fn hold_on(mut bracket: Bracket, w: Param) -> Result<f32> {
//!     let gradient = bracket.grad_mut(w);
//!     bracket.end()?;
//!     Ok(gradient[0])
//! }
//! ```
//! Parameters are not used behind the context's end:
//! ```compile_fail,E0505
//! # use libamp::*;
//! fn outlive(amp: Context, w: Param) -> Result<f32> {
//!     let weights = amp.data(w);
//!     amp.shutdown()?;
//!     Ok(weights[0])
//! }
//! ```
//! An op does not read what it writes:
//! ```compile_fail,E0502
//! libamp::op! { fn relu(out y: [n], read x: [n]; n: i32) { y.copy_from_slice(x); } }
//! fn in_place(values: &mut [f32]) {
//!     relu(values, values, 4);
//! }
//! ```
//! Extents are the same each time that they are evaluated, once to check the caller's slice and once to make the op's:
//! ```compile_fail,E0015
//! # use std::sync::atomic::{AtomicI64, Ordering};
//! static CALLS: AtomicI64 = AtomicI64::new(4);
//! libamp::op! { fn f(out y: [CALLS.fetch_add(100, Ordering::SeqCst)]; n: i32) { y.fill(n as f32); } }
//! ```
//! Numbers are Rust's own, whose size and value libamp knows:
//! ```compile_fail,E0277
//! # #[derive(Clone, Copy)]
//! struct Strange(i32);
//! impl libamp::op::Number for Strange {
//!     const NAME: &'static str = "int32";
//!     fn extent(self) -> i64 { 4 }
//! }
//! ```
//! What an op is made of is for `op!` alone:
//! ```compile_fail,E0133
//! fn slot() -> [u8; 8] {
//!     libamp::op::Slot::new([0u8; 8]).get()
//! }
//! fn inside() {
//!     drop(libamp::op::running());
//! }
//! ```
//! A scaler has one pass at a time, which ends once:
//! ```compile_fail,E0499
//! # use libamp::*;
//! fn two(scaler: &mut Scaler) -> Result<Action> {
//!     let pass = scaler.begin()?;
//!     scaler.begin()?.end()?;
//!     pass.end()
//! }
//! ```
//! Nor do two threads share a context:
//! ```compile_fail,E0277
//! # use libamp::*;
//! fn shared<T: Sync>(_: T) {}
//! fn share(amp: Context) {
//!     shared(amp);
//! }
//! ```
#![allow(clippy::missing_safety_doc)]

pub use libamp_sys as sys;

mod bracket;
mod config;
mod context;
mod diagnostics;
mod error;
mod matmul;
mod model;
#[doc(hidden)]
pub mod op;
mod op_macro;
mod scaler;
mod values;

pub use bracket::{Bracket, Delay, Step};
pub use config::{Config, Level};
pub use context::{Action, Context, Master};
pub use diagnostics::{OpStats, Record};
pub use error::{Error, Result};
pub use matmul::{matmul, Elements, ElementsMut, Matmul};
pub use model::{Model, Optimizer};
pub use op::Op;
pub use scaler::{Masters, Pass, Scaler};
pub use values::{Param, Values};

/// The C library's version: "0.1.0".
pub fn version() -> String {
    // SAFETY: static
    unsafe { error::text(sys::amp_version()) }
}
