// SPDX-License-Identifier: Apache-2.0
//! amp_torch.h from Rust, without crates: the digits at each level with an optimizer written here, and the traces of
//! Python's GradScaler. usage: test_libtorch_rust DIGITS.csv TRACE..., made by trace.py. Prints TAP.
use std::ffi::{c_char, c_void, CStr};
use std::ptr::{null, null_mut};

// ---- what a binding of libtorch would have: the declarations, an error, a tensor that ends with its owner ----

type Raw = *mut c_void;
type Status = i32;
type Update = extern "C" fn(*mut c_void) -> i32;

#[repr(C)]
#[derive(Default)]
struct ScalerState {
    scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: i64,
    growth_tracker: i64,
}

extern "C" {
    fn amp_torch_last_error() -> *const c_char;
    fn amp_torch_open(
        level: i32, config: *const c_void, tensors: *const Raw, names: *const *const c_char, is_norm: *const u8,
        optimizers: *const u32, n: usize, session: *mut Raw,
    ) -> Status;
    fn amp_torch_close(session: Raw) -> Status;
    fn amp_torch_enter(session: Raw, guard: *mut u64) -> Status;
    fn amp_torch_leave(guard: u64) -> Status;
    fn amp_torch_cast_inputs(session: Raw, tensors: *const Raw, n: usize, cast: *mut Raw) -> Status;
    fn amp_torch_cast_outputs(session: Raw, tensors: *const Raw, n: usize, cast: *mut Raw) -> Status;
    fn amp_torch_begin(
        session: Raw, loss: Raw, loss_id: u32, optimizers: *const u32, n: usize, flags: u32, scaled: *mut Raw,
    ) -> Status;
    fn amp_torch_end(session: Raw, loss_id: u32, action: *mut i32) -> Status;
    fn amp_torch_step(session: Raw, optimizer: u32, update: Update, own: *mut c_void, stepped: *mut i32) -> Status;
    fn amp_torch_scaler_new(state: *const ScalerState, scaler: *mut Raw) -> Status;
    fn amp_torch_scaler_free(scaler: Raw) -> Status;
    fn amp_torch_scaler_scale(scaler: Raw, tensor: Raw, scaled: *mut Raw) -> Status;
    fn amp_torch_scaler_unscale(
        scaler: Raw, optimizer: u64, gradients: *const Raw, n: usize, found_inf: *mut i32,
    ) -> Status;
    fn amp_torch_scaler_step(
        scaler: Raw, optimizer: u64, gradients: *const Raw, n: usize, update: Update, own: *mut c_void,
        stepped: *mut i32,
    ) -> Status;
    fn amp_torch_scaler_update(scaler: Raw, new_scale: f64) -> Status;
    fn amp_torch_scaler_get_state(scaler: Raw, state: *mut ScalerState) -> Status;

    fn torch_seed(seed: u64);
    fn torch_floats(values: *const f32, rows: i64, columns: i64) -> Raw;
    fn torch_integers(values: *const i64, n: i64) -> Raw;
    fn torch_full(rows: i64, columns: i64, value: f64) -> Raw;
    fn torch_param(rows: i64, columns: i64, bound: f64) -> Raw;
    fn torch_require_grad(tensor: Raw);
    fn torch_free(tensor: Raw);
    fn torch_linear(x: Raw, weight: Raw, bias: Raw) -> Raw;
    fn torch_relu(x: Raw) -> Raw;
    fn torch_cross_entropy(x: Raw, labels: Raw) -> Raw;
    fn torch_sum_of(x: Raw, factor: f64) -> Raw;
    fn torch_correct(logits: Raw, labels: Raw) -> i64;
    fn torch_backward(loss: Raw);
    fn torch_grad(param: Raw) -> Raw;
    fn torch_clear_grad(param: Raw);
    fn torch_scale_(tensor: Raw, factor: f64);
    fn torch_add_(tensor: Raw, other: Raw, factor: f64);
    fn torch_value(tensor: Raw, i: i64) -> f64;
    fn torch_type(tensor: Raw) -> i32;
}

type Outcome<T> = Result<T, String>;

fn done(status: Status) -> Outcome<()> {
    let words = || unsafe { CStr::from_ptr(amp_torch_last_error()) }.to_string_lossy().into_owned();
    if status == 0 { Ok(()) } else { Err(format!("status {status}: {}", words())) }
}

fn ensure(holds: bool, what: impl Fn() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(what()) }
}

struct Tensor(Raw);

impl Drop for Tensor {
    fn drop(&mut self) {
        unsafe { torch_free(self.0) }
    }
}

impl Tensor {
    /// What a function writes into its last argument.
    fn made(make: impl FnOnce(*mut Raw) -> Status) -> Outcome<Tensor> {
        let mut out = null_mut();
        done(make(&mut out)).map(|()| Tensor(out))
    }
}

// ---- digits ----

struct Session(Raw);

impl Drop for Session {
    fn drop(&mut self) {
        unsafe { amp_torch_close(self.0) };
    }
}

struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        unsafe { amp_torch_leave(self.0) };
    }
}

impl Session {
    fn enter(&self) -> Outcome<Guard> {
        let mut guard = 0;
        done(unsafe { amp_torch_enter(self.0, &mut guard) }).map(|()| Guard(guard))
    }
}

/// SGD with momentum, of parameters that show FP32 masters while it runs.
struct Momentum<'a> {
    params: &'a [Tensor],
    velocities: Vec<Tensor>,
}

extern "C" fn update(own: *mut c_void) -> i32 {
    let sgd = unsafe { &*(own as *const Momentum) };
    for (param, velocity) in sgd.params.iter().zip(&sgd.velocities) {
        unsafe {
            let gradient = Tensor(torch_grad(param.0));
            torch_scale_(velocity.0, 0.9);
            torch_add_(velocity.0, gradient.0, 1.0);
            torch_add_(param.0, velocity.0, -0.05);
        }
    }
    0
}

const PIXELS: usize = 64;
const SHAPES: [(i64, i64); 4] = [(32, PIXELS as i64), (32, 0), (10, 32), (10, 0)];

struct Batch {
    images: Tensor,
    labels: Tensor,
    n: usize,
}

fn batch(rows: &[Vec<f32>]) -> Batch {
    let pixels: Vec<f32> = rows.iter().flat_map(|row| row[..PIXELS].iter().map(|value| value / 16.0)).collect();
    let labels: Vec<i64> = rows.iter().map(|row| row[PIXELS] as i64).collect();
    let n = rows.len();
    let images = Tensor(unsafe { torch_floats(pixels.as_ptr(), n as i64, PIXELS as i64) });
    Batch { images, labels: Tensor(unsafe { torch_integers(labels.as_ptr(), n as i64) }), n }
}

fn forward(session: &Session, params: &[Tensor], images: &Tensor) -> Outcome<Tensor> {
    unsafe {
        let x = Tensor::made(|out| amp_torch_cast_inputs(session.0, &images.0, 1, out))?;
        let hidden = Tensor(torch_linear(x.0, params[0].0, params[1].0));
        let active = Tensor(torch_relu(hidden.0));
        let logits = Tensor(torch_linear(active.0, params[2].0, params[3].0));
        Tensor::made(|out| amp_torch_cast_outputs(session.0, &logits.0, 1, out))
    }
}

/// Whether the optimizer stepped.
fn iterate(session: &Session, sgd: &mut Momentum, batch: &Batch) -> Outcome<bool> {
    let loss = {
        let _guard = session.enter()?;
        let logits = forward(session, sgd.params, &batch.images)?;
        Tensor(unsafe { torch_cross_entropy(logits.0, batch.labels.0) })
    };
    let (mut action, mut stepped) = (-1, -1);
    unsafe {
        sgd.params.iter().for_each(|param| torch_clear_grad(param.0));
        let scaled = Tensor::made(|out| amp_torch_begin(session.0, loss.0, 0, null(), 0, 0, out))?;
        torch_backward(scaled.0);
        done(amp_torch_end(session.0, 0, &mut action))?;
        done(amp_torch_step(session.0, 0, update, sgd as *mut Momentum as *mut c_void, &mut stepped))?;
    }
    ensure((stepped == 1) == (action == 0), || format!("action {action}, stepped {stepped}"))?;
    Ok(stepped == 1)
}

/// Of a level: its weights' type and what a linear layer gives under a guard; 1 FP32, 2 fp16, 3 bfloat16.
const TYPES: [(i32, i32); 6] = [(1, 1), (1, 2), (2, 2), (2, 2), (1, 3), (3, 3)];

fn check_types(level: i32, session: &Session, params: &[Tensor], images: &Tensor) -> Outcome<()> {
    let _guard = session.enter()?;
    let x = Tensor::made(|out| unsafe { amp_torch_cast_inputs(session.0, &images.0, 1, out) })?;
    let hidden = Tensor(unsafe { torch_linear(x.0, params[0].0, params[1].0) });
    let found = unsafe { (torch_type(params[0].0), torch_type(hidden.0)) };
    ensure(found == TYPES[level as usize - 1], || format!("types {found:?}"))
}

fn digits(level: i32, rows: &[Vec<f32>]) -> Outcome<()> {
    unsafe { torch_seed(3) };
    let params: Vec<Tensor> = SHAPES.iter().map(|s| Tensor(unsafe { torch_param(s.0, s.1, 0.15) })).collect();
    let velocities = SHAPES.iter().map(|s| Tensor(unsafe { torch_full(s.0, s.1, 0.0) })).collect();
    let raw: Vec<Raw> = params.iter().map(|param| param.0).collect();
    let mut out = null_mut();
    done(unsafe { amp_torch_open(level, null(), raw.as_ptr(), null(), null(), null(), raw.len(), &mut out) })?;
    let session = Session(out);
    let mut sgd = Momentum { params: &params, velocities };
    let (test, train) = rows.split_at(597);
    let (mut steps, mut skips) = (0, 0);
    check_types(level, &session, &params, &batch(&train[..2]).images)?;
    for _ in 0..5 {
        for chunk in train.chunks(32) {
            *(if iterate(&session, &mut sgd, &batch(chunk))? { &mut steps } else { &mut skips }) += 1;
        }
    }
    let test = batch(test);
    let logits = forward(&session, &params, &test.images)?;
    let accuracy = unsafe { torch_correct(logits.0, test.labels.0) } as f64 / test.n as f64;
    println!("# O{}: {:.4}, {steps} steps, {skips} skipped", level - 1, accuracy);
    ensure(accuracy > 0.88 && skips < 12, || format!("accuracy {accuracy}, {skips} steps skipped"))
}

// ---- GradScaler ----

struct Follower {
    scaler: Raw,
    params: [Tensor; 2],
    steps: u32,
}

impl Drop for Follower {
    fn drop(&mut self) {
        unsafe { amp_torch_scaler_free(self.scaler) };
    }
}

/// SGD with a rate of 1.
extern "C" fn subtract_gradient(param: *mut c_void) -> i32 {
    unsafe { torch_add_(param, Tensor(torch_grad(param)).0, -1.0) };
    0
}

impl Follower {
    fn new() -> Follower {
        let params = [3, 2].map(|n| Tensor(unsafe { torch_full(n, 0, 1.0) }));
        params.iter().for_each(|param| unsafe { torch_require_grad(param.0) });
        Follower { scaler: null_mut(), params, steps: 0 }
    }

    fn backward(&mut self, which: usize, factor: f64) -> Outcome<()> {
        let loss = Tensor(unsafe { torch_sum_of(self.params[which].0, factor) });
        let scaled = Tensor::made(|out| unsafe { amp_torch_scaler_scale(self.scaler, loss.0, out) })?;
        unsafe { torch_backward(scaled.0) };
        Ok(())
    }

    fn step(&mut self, which: usize, value: f64, expected: f64) -> Outcome<()> {
        let (param, gradient) = (self.params[which].0, Tensor(unsafe { torch_grad(self.params[which].0) }));
        done(unsafe {
            amp_torch_scaler_step(self.scaler, which as u64, &gradient.0, 1, subtract_gradient, param, null_mut())
        })?;
        let (now, found) = unsafe { (torch_value(param, 0), torch_value(gradient.0, 0)) };
        unsafe { torch_clear_grad(param) };
        self.steps += 1;
        let same = now == value && (found == expected || found.is_nan() && expected.is_nan());
        ensure(same, || format!("step {}: {now}, {found}; Python has {value}, {expected}", self.steps))
    }

    fn update(&mut self, scale: f64, tracker: f64) -> Outcome<()> {
        let mut state = ScalerState::default();
        done(unsafe { amp_torch_scaler_update(self.scaler, 0.0) })?;
        done(unsafe { amp_torch_scaler_get_state(self.scaler, &mut state) })?;
        let same = state.scale == scale && state.growth_tracker == tracker as i64;
        ensure(same, || format!("step {}: scale {}; Python has {scale}", self.steps, state.scale))
    }

    /// A line of the trace: trace.py has the words.
    fn follow(&mut self, line: &str) -> Outcome<()> {
        let (word, rest) = line.split_once(' ').ok_or("an empty line")?;
        let number = |text: &str| text.parse::<f64>().map_err(|error| format!("{text}: {error}"));
        let numbers = rest.split(' ').map(number).collect::<Outcome<Vec<f64>>>()?;
        let which = numbers[0] as usize;
        match (word, numbers.as_slice()) {
            ("new", &[scale, growth_factor, backoff_factor, interval]) => {
                let growth_interval = interval as i64;
                let state = ScalerState { scale, growth_factor, backoff_factor, growth_interval, growth_tracker: 0 };
                done(unsafe { amp_torch_scaler_new(&state, &mut self.scaler) })
            }
            ("backward", &[_, factor]) => self.backward(which, factor),
            ("unscale", &[_]) => {
                let gradient = Tensor(unsafe { torch_grad(self.params[which].0) });
                done(unsafe { amp_torch_scaler_unscale(self.scaler, which as u64, &gradient.0, 1, null_mut()) })
            }
            ("step", &[_, value, gradient]) => self.step(which, value, gradient),
            ("update", &[scale, tracker]) => self.update(scale, tracker),
            ("set", &[scale]) => done(unsafe { amp_torch_scaler_update(self.scaler, scale) }),
            _ => Err(format!("no line of a trace: {line}")),
        }
    }
}

fn trace(path: &str) -> Outcome<()> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut follower = Follower::new();
    text.lines().try_for_each(|line| follower.follow(line))?;
    ensure(follower.steps > 100, || format!("{} steps", follower.steps))
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let text = std::fs::read_to_string(&files[0]).expect("the digits");
    let numbers = |line: &str| line.split(',').map(|field| field.parse().expect("a number")).collect();
    let rows: Vec<Vec<f32>> = text.lines().map(numbers).collect();
    let levels = (1..=6).map(|level| (format!("the digits at O{}", level - 1), digits(level, &rows)));
    let traces = files[1..].iter().map(|file| (format!("a trace of GradScaler, {file}"), trace(file)));
    let all: Vec<_> = levels.chain(traces).collect();
    println!("1..{}", all.len());
    for (i, (what, outcome)) in all.iter().enumerate() {
        if let Err(error) = outcome {
            println!("# {error}");
        }
        println!("{} {} - {what}", if outcome.is_ok() { "ok" } else { "not ok" }, i + 1);
    }
    std::process::exit(all.iter().any(|(_, outcome)| outcome.is_err()) as i32);
}
