// SPDX-License-Identifier: Apache-2.0
//! What the safe layer promises: a bracket ends with its scope, whatever ends that; errors change nothing.
use libamp::{matmul, sys, Action, Bracket, Config, Context, Delay, Elements, ElementsMut, Level, Model};
use libamp::{Optimizer, Param, Values};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard};

const N: usize = 4;

libamp::op! {
    /// y = x * w; a w of 1000 is too much for it
    fn linear(out y: [n], read x: [n], read w: [n]; n: i32) {
        assert!(w[0] < 1000.0, "w is {}", w[0]);
        (0..n as usize).for_each(|i| y[i] = x[i] * w[i]);
    }
}

libamp::op! {
    /// dw += x * dy
    fn linear_dw(add dw: [n], read x: [n], read dy: [n]; n: i32) {
        (0..n as usize).for_each(|i| dw[i] += x[i] * dy[i]);
    }
}

/// Slots are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn model() -> (Model, Param, Optimizer) {
    let mut model = Model::new();
    model.op(linear::op()).op(linear_dw::op().backward_of("linear"));
    let w = model.param("w", [1.0, 2.0, 3.0, 4.0]);
    let sgd = model.optimizer(&[w]);
    (model, w, sgd)
}

fn context(level: Level) -> (Context, Param, Optimizer) {
    let (mut model, w, sgd) = model();
    let amp = model.initialize(&Config::new(level).emulate(level != Level::O0)).unwrap();
    (amp, w, sgd)
}

/// The gradient of a quarter of the sum of x * w, times the scale: as fp16 can hold it.
fn backward(bracket: &mut Bracket, w: Param) {
    let seed = 0.25 * bracket.seed_factor();
    linear_dw(bracket.grad_mut(w), &[0.4, 0.8, 1.2, 1.6], &[seed; N], N as i32);
}

fn update(amp: &mut Context, w: Param, sgd: Optimizer) -> Action {
    amp.step(sgd, |step| {
        let (values, grad) = step.both_mut(w);
        values.iter_mut().zip(grad).for_each(|(x, g)| *x -= 0.5 * *g);
    }).unwrap()
}

fn train(amp: &mut Context, w: Param, sgd: Optimizer) -> Action {
    let mut y = [0.0; N];
    linear(&mut y, &[1.0; N], amp.data(w), N as i32);
    amp.zero_grad(sgd);
    let mut bracket = amp.scale_loss(sgd).unwrap();
    backward(&mut bracket, w);
    bracket.end().unwrap();
    update(amp, w, sgd)
}

fn words(panic: Box<dyn std::any::Any + Send>) -> String {
    panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap()
}

#[test]
fn a_panic_within_a_bracket_leaves_the_context_usable() {
    let _alone = alone();
    let run = |panics: bool| {
        let (mut amp, w, sgd) = context(Level::O1);
        if panics {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let mut bracket = amp.scale_loss(sgd).unwrap();
                bracket.grad_mut(w).fill(7.0);
                panic!("no more data");
            }));
            assert_eq!(words(panic.unwrap_err()), "no more data");
            assert_eq!(amp.grad(w), [0.0; N], "what backward left is dropped");
        }
        (0..3).for_each(|_| assert_eq!(train(&mut amp, w, sgd), Action::Step));
        assert_eq!(amp.record(0).unwrap().brackets, 3);
        amp.shutdown().unwrap()
    };
    assert_eq!(run(true), run(false), "as without the panic");
}

#[test]
fn an_error_within_a_bracket_cancels_it() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    amp.grad_mut(w).fill(0.5);
    let fails = |amp: &mut Context| -> Result<Action, Box<dyn std::error::Error>> {
        let mut bracket = amp.scale_loss(sgd)?;
        bracket.grad_mut(w).fill(9.0);
        let _: i32 = "four".parse()?;
        Ok(bracket.end()?)
    };
    assert!(fails(&mut amp).unwrap_err().to_string().contains("invalid digit"));
    assert_eq!(amp.grad(w), [0.5; N], "as it was at its begin");
    assert_eq!(train(&mut amp, w, sgd), Action::Step);
}

#[test]
fn a_panic_in_an_op_reaches_its_caller() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O4);
    let panic = catch_unwind(|| linear(&mut [0.0; N], &[1.0; N], &[1024.0; N], N as i32));
    assert_eq!(words(panic.unwrap_err()), "w is 1024");
    assert_eq!(train(&mut amp, w, sgd), Action::Step);
    let calls = amp.op_stats().unwrap()[0].calls;
    assert_eq!(calls, 2, "it came through libamp");
}

#[test]
fn a_panic_in_an_update_ends_the_step() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O2);
    assert_eq!(train(&mut amp, w, sgd), Action::Step);
    let mut bracket = amp.scale_loss(sgd).unwrap();
    backward(&mut bracket, w);
    assert_eq!(bracket.end().unwrap(), Action::Step);
    let panic = catch_unwind(AssertUnwindSafe(|| amp.step(sgd, |_| panic!("in the update"))));
    assert_eq!(words(panic.unwrap_err()), "in the update");
    assert_eq!(train(&mut amp, w, sgd), Action::Step);
}

#[test]
fn an_overflow_skips() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    let before = amp.data(w).to_vec();
    let mut bracket = amp.scale_loss(sgd).unwrap();
    assert_eq!((bracket.scale(), bracket.seed_factor()), (65536.0, 65536.0));
    bracket.grad_mut(w)[2] = f32::INFINITY;
    assert_eq!(bracket.end().unwrap(), Action::Skip);
    assert_eq!(update(&mut amp, w, sgd), Action::Skip);
    assert_eq!(amp.data(w), before);
    let record = amp.record(0).unwrap();
    assert_eq!((record.skipped, record.scale_after, record.first_nonfinite.as_deref()), (1, 32768.0, Some("w")));
}

#[test]
fn masters_are_fp32_and_gradients_unscaled() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O2);
    train(&mut amp, w, sgd);
    let mut masters = amp.masters(sgd).unwrap();
    assert_eq!((masters.len(), masters[0].name.as_str(), masters[0].is_master), (1, "w", true));
    let grad = masters[0].grad.as_deref().unwrap();
    assert!((grad[0] - 0.1).abs() < 0.1 / 1024.0, "fp16 has 11 bits: {grad:?}");
    masters[0].data.copy_from_slice(&[1.0 / 3.0; N]);
    amp.write_back().unwrap();
    assert_eq!(amp.data(w), [0.333_251_95; N], "1/3 in fp16");
    assert_eq!(amp.shutdown().unwrap(), [[1.0f32 / 3.0; N]], "the master comes back");
}

#[test]
fn gradients_are_clipped_between_bracket_and_step() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    let mut bracket = amp.scale_loss(sgd).unwrap();
    let factor = bracket.seed_factor();
    bracket.grad_mut(w).copy_from_slice(&[3.0 * factor, 4.0 * factor, 0.0, 0.0]);
    bracket.end().unwrap();
    assert_eq!(amp.clip_grad_norm(sgd, 1.0).unwrap(), 5.0);
    assert!((amp.grad(w)[0] - 0.6).abs() < 1e-6, "by 1 / (5 + 1e-6)");
    amp.clip_grad_value(sgd, 0.5).unwrap();
    assert_eq!(amp.grad(w)[..2], [0.5, 0.5]);
}

#[test]
fn a_state_resumes_bit_for_bit() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O2);
    (0..5).for_each(|_| assert_eq!(train(&mut amp, w, sgd), Action::Step));
    let state = amp.to_bytes().unwrap();
    (0..5).for_each(|_| assert_eq!(train(&mut amp, w, sgd), Action::Step));
    let wanted = amp.shutdown().unwrap();

    let (mut amp, w, sgd) = context(Level::O2);
    let damaged = amp.load_bytes(&state[..state.len() - 3]).unwrap_err();
    assert_eq!(damaged.status(), sys::AMP_ERR_BAD_FILE, "{damaged}");
    amp.load_bytes(&state).unwrap();
    (0..5).for_each(|_| assert_eq!(train(&mut amp, w, sgd), Action::Step));
    assert_eq!(amp.shutdown().unwrap(), wanted);
}

#[test]
fn a_file_holds_a_state() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    train(&mut amp, w, sgd);
    let path = std::env::temp_dir().join(format!("libamp-{}.safetensors", std::process::id()));
    amp.save(&path).unwrap();
    let saved = amp.data(w).to_vec();
    train(&mut amp, w, sgd);
    amp.load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(amp.data(w), saved);
    assert_eq!(amp.load(&path).unwrap_err().status(), sys::AMP_ERR_NOT_FOUND);
}

#[test]
fn what_cannot_be_initialized_keeps_its_parameters() {
    let _alone = alone();
    let (mut model, w, _) = model();
    let error = model.initialize(&Config::new(Level::O2)).err().unwrap();
    assert_eq!(error.status(), sys::AMP_ERR_MISSING_HOOK, "{error}");
    assert!(error.to_string().starts_with("AMP_ERR_MISSING_HOOK: ") && error.message().contains("emulate"), "{error}");
    let amp = model.initialize(&Config::new("O2".parse().unwrap()).emulate(true)).unwrap();
    assert_eq!(amp.data(w), [1.0, 2.0, 3.0, 4.0]);
    assert!("O9".parse::<Level>().is_err());
}

#[test]
fn another_model_is_refused() {
    let _alone = alone();
    let refused = |result: libamp::Result<()>, words| {
        let error = result.unwrap_err();
        assert!(error.status() == sys::AMP_ERR_INVALID_ARGUMENT && error.message().contains(words), "{error}");
    };
    let ((mut amp, _, sgd), (mut other, w, foreign)) = (context(Level::O1), model());
    assert_eq!(amp.scale_loss(sgd).unwrap().cancel(), Ok(()));
    refused(amp.scale_loss(foreign).map(|_| ()), "an optimizer of another model");
    refused(amp.step(foreign, |_| ()).map(|_| ()), "an optimizer of another model");
    refused(amp.clip_grad_norm(foreign, 1.0).map(|_| ()), "an optimizer of another model");
    assert!(words(catch_unwind(|| amp.data(w)[0]).unwrap_err()).contains("a parameter of another model"));
    let (mut third, _, _) = model();
    third.optimizer(&[w]);
    refused(third.initialize(&Config::new(Level::O0)).map(|_| ()), "lists a parameter of another model");
    assert!(other.initialize(&Config::new(Level::O0)).is_ok());
    let again = other.initialize(&Config::new(Level::O0)).err().unwrap();
    assert!(again.message().contains("initialized already"), "{again}");
}

#[test]
fn a_forgotten_factor_is_told() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    let mut bracket = amp.scale_loss(sgd).unwrap();
    linear_dw(bracket.grad_mut(w), &[0.4; N], &[0.25; N], N as i32);
    let error = bracket.end().unwrap_err();
    assert!(error.message().contains("amp_seed_factor"), "{error}");
}

#[test]
fn what_is_written_is_seen() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O4);
    let (mut model, v, _) = { train(&mut amp, w, sgd); model() };
    let product = |amp: &Context| {
        let mut y = [0.0; N];
        amp.scope(|| linear(&mut y, &[1.0; N], amp.data(w), N as i32)).unwrap();
        y
    };
    product(&amp); // packs the weights
    amp.data_mut(w).copy_from_slice(&[8.0; N]);
    assert_eq!(product(&amp), [8.0; N]);
    let lent = amp.data_mut(w);
    let mut y = [0.0; N];
    linear(&mut y, &[1.0; N], lent, N as i32);
    lent.fill(16.0);
    linear(&mut y, &[1.0; N], lent, N as i32);
    assert_eq!((y, product(&amp)), ([16.0; N], [16.0; N]));
    drop(amp);
    let mut amp = model.initialize(&Config::new(Level::O2).emulate(true)).unwrap();
    amp.data_mut(v).copy_from_slice(&[1.0 / 3.0; N]);
    assert_eq!(amp.to_bytes().map(|_| ()), Ok(()));
    assert_eq!(amp.shutdown().unwrap(), [[1.0f32 / 3.0; N]], "FP32 values that are written keep every bit");
}

#[test]
fn contexts_share_ops_by_scope() {
    let _alone = alone();
    let ((low, w, _), (full, v, _)) = (context(Level::O4), context(Level::O0));
    let (x, mut y) = ([1.0 + 1.0 / 1024.0; N], [0.0; N]); // bfloat16 has 8 bits
    low.scope(|| linear(&mut y, &x, low.data(w), N as i32)).unwrap();
    assert_eq!(y, [1.0, 2.0, 3.0, 4.0]);
    full.scope(|| linear(&mut y, &x, full.data(v), N as i32)).unwrap();
    assert_eq!(y[0], x[0]);
    drop(low);
    linear(&mut y, &x, full.data(v), N as i32);
    assert_eq!(y[0], x[0]);
}

#[test]
fn several_brackets_make_one_decision() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    for delay in [Delay::OverflowCheck, Delay::None] {
        let mut bracket = amp.scale_losses(&[sgd], 0, delay).unwrap();
        backward(&mut bracket, w);
        bracket.end().unwrap();
    }
    assert!((amp.grad(w)[0] - 0.2).abs() < 0.2 / 1024.0, "the sum of both: {:?}", amp.grad(w));
    assert_eq!(update(&mut amp, w, sgd), Action::Step);
    assert_eq!(amp.record(0).unwrap().brackets, 1);
}

#[test]
fn lengths_are_checked() {
    let panic = catch_unwind(|| linear(&mut [0.0; N], &[1.0; N - 1], &[1.0; N], N as i32));
    assert_eq!(words(panic.unwrap_err()), "linear: x has 3 elements, not [n]: 4");
    let panic = catch_unwind(|| linear(&mut [], &[], &[], -1));
    assert_eq!(words(panic.unwrap_err()), "linear: y: [n] is negative, or too large");
    let (a, mut d) = ([1.0f32, 2.0, 3.0, 4.0], [0.0f32; 4]);
    matmul(2, 2, 2, Elements::Full(&a), Elements::Full(&a)).transpose_b().write(ElementsMut::Full(&mut d)).unwrap();
    assert_eq!(d, [5.0, 11.0, 11.0, 25.0]);
    let short = matmul(2, 2, 3, Elements::Full(&a), Elements::Full(&a)).write(ElementsMut::Full(&mut d)).unwrap_err();
    assert!(short.message().contains("a has 4 elements, not 2 * 3"), "{short}");
    let odd = matmul(2, 2, 2, Elements::Low(sys::AMP_FLOAT64, &[0; 4]), Elements::Full(&a));
    assert_eq!(odd.write(ElementsMut::Full(&mut d)).unwrap_err().status(), sys::AMP_ERR_INVALID_ARGUMENT);
}

/// A module whose names are not what they look like, as safe code may have it.
mod hostile {
    #![allow(non_camel_case_types, unused_macros, dead_code)]
    pub type f32 = f64;
    pub type i64 = u8;

    pub trait Lies {
        fn len(self) -> usize;
        fn next(self) -> Option<usize>;
    }
    impl Lies for &mut [core::primitive::f32] {
        fn len(self) -> usize {
            1000
        }
        fn next(self) -> Option<usize> {
            None
        }
    }
    macro_rules! stringify {
        ($($word:tt)*) => { "1000" };
    }

    libamp::op! { pub fn fill(out y: [n]; n: i32) { y.fill(1.0); } }
    libamp::op! { pub fn odd(out y: [!n]; n: i32) { y.fill(1.0); } }
}

#[test]
fn the_callers_names_are_not_taken_for_the_macros() {
    let _alone = alone();
    let panic = catch_unwind(|| hostile::fill(&mut [0.0; N], 1000));
    assert_eq!(words(panic.unwrap_err()), "fill: y has 4 elements, not [n]: 1000");
    let mut model = Model::new();
    model.op(hostile::fill::op().class(sys::AMP_LOWER)).param("w", [1.0]);
    let amp = model.initialize(&Config::new(Level::O4).emulate(true)).unwrap();
    let mut y = [0.0; N];
    hostile::fill(&mut y, N as i32);
    assert_eq!(y, [1.0; N]);
    assert_eq!(amp.op_stats().unwrap()[0].calls, 1, "with the extents that the schema has");
}

/// In C it is 0 or 1: where libamp has a copy, it would have that many elements.
#[test]
fn extents_that_are_not_c_are_refused() {
    let panic = catch_unwind(hostile::odd::op).err().unwrap();
    assert_eq!(words(panic), "odd: y[!n]: extents are made of + - * / % and ()");
}

#[test]
fn a_parameter_is_listed_once() {
    let _alone = alone();
    let mut model = Model::new();
    let w = model.param("w", [1.0; N]);
    model.optimizer(&[w, w]); // `masters` would have it twice, to be written
    let error = model.initialize(&Config::new(Level::O0)).err().unwrap();
    assert!(error.message().contains('w'), "{error}");
    let (a, mut d) = ([1.0f32], [0.0f32]);
    let negative = matmul(-1, -1, -1, Elements::Full(&a), Elements::Full(&a)).write(ElementsMut::Full(&mut d));
    assert_eq!(negative.unwrap_err().status(), sys::AMP_ERR_INVALID_ARGUMENT);
}

#[test]
fn ops_run_on_any_thread() {
    let _alone = alone();
    let (amp, w, _) = context(Level::O4);
    let weights = amp.data(w).to_vec();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut y = [0.0; N];
                    linear(&mut y, &[2.0; N], &weights, N as i32);
                    assert_eq!(y, [2.0, 4.0, 6.0, 8.0]);
                }
            });
        }
        for _ in 0..20 {
            context(Level::O1).0.shutdown().unwrap(); // meanwhile
        }
    });
}

libamp::op! {
    /// Ends a context from within.
    fn end_inside(out y: [n]; n: i32) {
        let ended = ENDED.with(|place| place.borrow_mut().take()).map(Context::shutdown);
        y.fill(ended.and_then(Result::err).map_or(0.0, |error| error.status() as f32));
    }
}

thread_local! {
    static ENDED: std::cell::RefCell<Option<Context>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_context_does_not_end_within_an_op() {
    let _alone = alone();
    let mut model = Model::new();
    model.op(end_inside::op().class(sys::AMP_LOWER)).param("w", [1.0]);
    let amp = model.initialize(&Config::new(Level::O4).emulate(true)).unwrap();
    ENDED.with(|place| *place.borrow_mut() = Some(amp));
    let mut y = [0.0; 1];
    end_inside(&mut y, 1);
    assert_eq!(y, [sys::AMP_ERR_WRONG_STATE as f32]);
}

#[test]
fn a_context_may_move_to_a_thread() {
    let _alone = alone();
    let (mut amp, w, sgd) = context(Level::O1);
    let trained = std::thread::spawn(move || {
        assert_eq!(train(&mut amp, w, sgd), Action::Step);
        amp.shutdown().unwrap()
    });
    assert_eq!(trained.join().unwrap()[0].len(), N);
    assert!(libamp::version().starts_with(&format!("{}.{}.", sys::AMP_VERSION_MAJOR, sys::AMP_VERSION_MINOR)));
}
