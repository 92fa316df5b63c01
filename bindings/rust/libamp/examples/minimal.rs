// SPDX-License-Identifier: Apache-2.0
//! The smallest training: a parameter, two ops, and the loop, at three levels.
#![forbid(unsafe_code)]

use libamp::{Action, Config, Level, Model, Values};

libamp::op! {
    /// y = x * w, element by element
    fn mul(out y: [n], read x: [n], read w: [n]; n: i32) {
        for (y, (x, w)) in y.iter_mut().zip(x.iter().zip(w)) {
            *y = x * w;
        }
    }
}

libamp::op! {
    /// dw += x * dy
    fn mul_dw(add dw: [n], read x: [n], read dy: [n]; n: i32) {
        for (dw, (x, dy)) in dw.iter_mut().zip(x.iter().zip(dy)) {
            *dw += x * dy;
        }
    }
}

/// y = w * x, trained towards w = 3.
fn train(level: Level) -> libamp::Result<(usize, f32)> {
    let mut model = Model::new();
    model.op(mul::op().class(libamp::sys::AMP_LOWER)).op(mul_dw::op().backward_of("mul"));
    let w = model.param("w", [1.0; 4]);
    let sgd = model.optimizer(&[w]);
    // init_scale: too much for fp16, so that the first steps are skipped
    let mut amp = model.initialize(&Config::new(level).emulate(level != Level::O0).init_scale(131072.0))?;

    let (x, mut y, mut taken) = ([0.5, 1.0, 1.0, 2.0], [0.0; 4], 0);
    for _ in 0..20 {
        mul(&mut y, &x, amp.data(w), 4);
        amp.zero_grad(sgd);
        let mut bracket = amp.scale_loss(sgd)?;
        let seed = bracket.seed_factor(); // the loss scale
        let dy = [0, 1, 2, 3].map(|i| seed * 0.5 * (y[i] - 3.0 * x[i]));
        mul_dw(bracket.grad_mut(w), &x, &dy, 4);
        bracket.end()?; // gradients are unscaled and checked; without end the bracket is cancelled
        let action = amp.step(sgd, |step| {
            let (w, dw) = step.both_mut(w);
            w.iter_mut().zip(dw).for_each(|(w, dw)| *w -= 0.5 * *dw);
        })?;
        taken += usize::from(action == Action::Step);
    }
    Ok((taken, amp.shutdown()?[0][1]))
}

fn main() -> libamp::Result<()> {
    for level in ["O0", "O1", "O4"] {
        let (taken, w) = train(level.parse()?)?;
        println!("{level}: {taken} steps of 20, w = {w:.4}");
    }
    Ok(())
}
