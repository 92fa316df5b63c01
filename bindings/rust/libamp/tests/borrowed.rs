// SPDX-License-Identifier: Apache-2.0
//! A framework with tensors of its own, that libamp sees for one call at a time: the scaler and the masters.
#![forbid(unsafe_code)]
use libamp::{sys, Action, Config, Elements, ElementsMut, Level, Masters, Pass, Scaler};

/// A tensor as such a framework has it: 16-bit weights, gradients that are new in each iteration.
struct Tensor {
    bits: Vec<u16>,
}

fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl Tensor {
    fn of(values: &[f32]) -> Tensor {
        Tensor { bits: values.iter().map(|&value| narrow(value)).collect() }
    }

    fn read(&self) -> Elements<'_> {
        Elements::Low(sys::AMP_BFLOAT16, &self.bits)
    }

    fn write(&mut self) -> ElementsMut<'_> {
        ElementsMut::Low(sys::AMP_BFLOAT16, &mut self.bits)
    }
}

#[test]
fn the_scale_grows_backs_off_and_is_divided_out() {
    let config = Config::new(Level::O1).init_scale(1024.0).window(3);
    let mut scaler = Scaler::new(&config).unwrap();
    let mut scales = Vec::new();
    for iteration in 0..8 {
        let mut pass = scaler.begin().unwrap();
        let scale = pass.scale();
        let mut gradient = vec![0.5 * scale; 5];
        if iteration == 4 {
            gradient[3] = f32::INFINITY;
        }
        pass.unscale(&mut [&mut gradient[..2], &mut []]).unwrap();
        pass.unscale(&mut [&mut gradient[2..]]).unwrap();
        assert_eq!(pass.is_finite(), iteration != 4);
        let action = pass.end().unwrap();
        assert_eq!(action, if iteration == 4 { Action::Skip } else { Action::Step });
        assert!(iteration == 4 || gradient.iter().all(|&g| g == 0.5));
        scales.push(scale);
    }
    assert_eq!(scales, [1024.0, 1024.0, 1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 1024.0]);
    assert_eq!(scaler.scale().unwrap(), 2048.0);
    assert_eq!(scaler.context().record(0).unwrap().skipped, 1);
    let health = scaler.context().health().unwrap();
    assert!(health.ends_with("sound") || health.ends_with("sound\n"), "{health}");
}

#[test]
fn a_pass_that_does_not_end_changes_nothing() {
    let mut scaler = Scaler::new(&Config::new(Level::O2)).unwrap();
    for _ in 0..3 {
        let mut pass = scaler.begin().unwrap();
        assert_eq!(pass.scale(), 65536.0);
        pass.unscale(&mut [&mut [f32::NAN]]).unwrap();
    }
    assert_eq!(scaler.context().record(0).unwrap().brackets, 0);
    assert_eq!(scaler.begin().unwrap().scale(), 65536.0);
}

#[test]
fn what_is_wrong_is_said() {
    let mut scaler = Scaler::new(&Config::new(Level::O1)).unwrap();
    let mut pass = scaler.begin().unwrap();
    let mut gradient = [pass.scale(); 4];
    pass.unscale(&mut [&mut gradient]).unwrap();
    let twice = pass.unscale(&mut [&mut gradient[2..]]).unwrap_err();
    assert!(twice.message().contains("gradient 0 is unscaled already"), "{twice}");
    let twice = pass.unscale_to(&mut [&mut [0.0; 4]], &[Elements::Full(&gradient)]).unwrap_err();
    assert!(twice.message().contains("gradient 0 is unscaled already"), "{twice}");
    let lengths = pass.unscale_to(&mut [&mut [0.0; 3]], &[Elements::Full(&[1.0; 4])]).unwrap_err();
    assert!(lengths.message().contains("number 0 has 4 elements, not 3"), "{lengths}");
    let saved = scaler.context().to_bytes().unwrap();
    assert!(scaler.begin().unwrap().end().unwrap_err().message().contains("no gradient was unscaled"));
    let asked = scaler.begin().unwrap().unscale(&mut [&mut [1.0]]).unwrap_err();
    assert!(asked.message().contains("nobody asked for `scale`"), "{asked}");
    let mut pass = scaler.begin().unwrap();
    let mut gradient = [pass.scale()];
    pass.unscale(&mut [&mut gradient]).unwrap();
    assert_eq!(pass.end().unwrap(), Action::Step);
    scaler.context().load_bytes(&saved).unwrap();
    assert_eq!(scaler.context().record(0).unwrap().brackets, 0);
}

/// y = w * x towards w = 3, in bfloat16: without masters an update of 2^-10 of a weight would be lost.
fn train(steps: usize, masters: bool) -> Vec<f32> {
    let mut weights = Tensor::of(&[1.0, 2.0, 2.5]);
    let mut held = Masters::new(&[weights.read()]).unwrap();
    let mut scaler = Scaler::new(&Config::new(Level::O5).loss_scale(8.0)).unwrap();
    for _ in 0..steps {
        let pass = scaler.begin().unwrap();
        let gradient: Vec<_> = weights.bits.iter().map(|&w| pass.scale() * (widen(w) - 3.0)).collect();
        let gradient = Tensor::of(&gradient);
        let update = |masters: &mut [Vec<f32>], gradients: &[Vec<f32>]| {
            masters[0].iter_mut().zip(&gradients[0]).for_each(|(w, g)| *w -= 0.002 * g);
        };
        held.step(pass, &[gradient.read()], &mut [weights.write()], update).unwrap();
        if !masters {
            held.reload(&[weights.read()]).unwrap();
        }
    }
    weights.bits.into_iter().map(widen).collect()
}

#[test]
fn masters_keep_what_sixteen_bits_lose() {
    let (with, without) = (train(2000, true), train(2000, false));
    assert!(with.iter().all(|w| (w - 3.0).abs() < 0.05), "{with:?}");
    assert_eq!(without[2], 2.5, "its updates of 0.001 are below half a unit");
}

/// A pass of which the loss was multiplied.
fn begun(scaler: &mut Scaler) -> Pass<'_> {
    let pass = scaler.begin().unwrap();
    assert!(pass.scale() >= 1.0);
    pass
}

#[test]
fn masters_skip_an_overflow_and_notice_writes() {
    let mut weights = Tensor::of(&[1.0, 2.0]);
    let mut held = Masters::new(&[weights.read()]).unwrap();
    let mut scaler = Scaler::new(&Config::new(Level::O2)).unwrap();
    let bad = Tensor::of(&[f32::INFINITY, 0.0]);
    let action = held.step(begun(&mut scaler), &[bad.read()], &mut [weights.write()], |_, _| panic!("skipped"));
    assert_eq!((action.unwrap(), widen(weights.bits[0])), (Action::Skip, 1.0));
    weights.bits[1] = narrow(5.0);
    let zero = Tensor::of(&[0.0, 0.0]);
    let written = held.step(begun(&mut scaler), &[zero.read()], &mut [weights.write()], |_, _| ()).unwrap_err();
    assert_eq!(written.status(), sys::AMP_ERR_CONFLICT);
    held.reload(&[weights.read()]).unwrap();
    assert_eq!(held.values()[0], [1.0, 5.0]);
    let action = held.step(begun(&mut scaler), &[zero.read()], &mut [weights.write()], |_, _| ()).unwrap();
    assert_eq!(action, Action::Step);
}
