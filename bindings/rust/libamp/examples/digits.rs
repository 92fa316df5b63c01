// SPDX-License-Identifier: Apache-2.0
//! Trains a network of two layers on handwritten digits, in plain Rust, at an opt level: digits digits.csv O4
//!
//! A line of the file is 64 pixels from 0 to 16 and the digit. Every third line is for the test.
#![forbid(unsafe_code)]

use libamp::{matmul, Action, Config, Context, Elements, ElementsMut, Level, Model, Optimizer, Param, Values};
use std::error::Error;

const PIXELS: usize = 64;
const HIDDEN: usize = 32;
const DIGITS: usize = 10;
const BATCH: usize = 32;
const EPOCHS: usize = 12;

// ---- the functions that the policy may see ----

libamp::op! {
    /// y = x * transposed w + b
    fn linear(out y: [n, o], read x: [n, c], read w: [o, c], read b: [o]; n: i32, c: i32, o: i32) {
        let (c, o) = (c as usize, o as usize);
        for (y, x) in y.chunks_mut(o).zip(x.chunks(c)) {
            for (j, y) in y.iter_mut().enumerate() {
                *y = b[j] + x.iter().zip(&w[j * c..]).map(|(x, w)| x * w).sum::<f32>();
            }
        }
    }
    low(dtype) {
        let low = |bits| Elements::Low(dtype, bits);
        let product = matmul(n.into(), o.into(), c.into(), low(x), low(w)).transpose_b().bias(low(b));
        product.write(ElementsMut::Low(dtype, y)).expect("linear");
    }
}

libamp::op! {
    /// dx = dy * w
    fn linear_dx(out dx: [n, c], read dy: [n, o], read w: [o, c]; n: i32, c: i32, o: i32) {
        let (c, o) = (c as usize, o as usize);
        dx.fill(0.0);
        for (dx, dy) in dx.chunks_mut(c).zip(dy.chunks(o)) {
            for (w, dy) in w.chunks(c).zip(dy) {
                dx.iter_mut().zip(w).for_each(|(dx, w)| *dx += dy * w);
            }
        }
    }
    low(dtype) {
        let low = |bits| Elements::Low(dtype, bits);
        matmul(n.into(), c.into(), o.into(), low(dy), low(w)).write(ElementsMut::Low(dtype, dx)).expect("linear_dx");
    }
}

libamp::op! {
    /// dw += transposed dy * x
    fn linear_dw(add dw: [o, c], read dy: [n, o], read x: [n, c]; n: i32, c: i32, o: i32) {
        let (c, o) = (c as usize, o as usize);
        for (dy, x) in dy.chunks(o).zip(x.chunks(c)) {
            for (dw, dy) in dw.chunks_mut(c).zip(dy) {
                dw.iter_mut().zip(x).for_each(|(dw, x)| *dw += dy * x);
            }
        }
    }
    low(dtype) {
        let low = |bits| Elements::Low(dtype, bits);
        let product = matmul(o.into(), c.into(), n.into(), low(dy), low(x)).transpose_a();
        product.add_to(ElementsMut::Full(dw)).expect("linear_dw");
    }
}

// ---- the others ----

fn add_rows(db: &mut [f32], dy: &[f32]) {
    for dy in dy.chunks(db.len()) {
        db.iter_mut().zip(dy).for_each(|(db, dy)| *db += dy);
    }
}

/// Rows of logits become probabilities; the mean loss.
fn softmax(logits: &mut [f32], digits: &[usize]) -> f32 {
    let mut loss = 0.0;
    for (row, &digit) in logits.chunks_mut(DIGITS).zip(digits) {
        let largest = row.iter().fold(f32::MIN, |a, &b| a.max(b));
        row.iter_mut().for_each(|x| *x = (*x - largest).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= sum);
        loss -= row[digit].ln();
    }
    loss / digits.len() as f32
}

// ---- the network ----

struct Layer {
    w: Param,
    b: Param,
    inputs: usize,
    outputs: usize,
}

struct Network {
    layers: [Layer; 2],
    sgd: Optimizer,
}

fn layer(model: &mut Model, name: &str, inputs: usize, outputs: usize, seed: &mut u32) -> Layer {
    let bound = (1.0 / inputs as f32).sqrt();
    let uniform = |_| {
        *seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        ((*seed >> 8) as f32 / (1 << 23) as f32 - 1.0) * bound
    };
    let w = model.param(&format!("{name}.weight"), (0..inputs * outputs).map(uniform).collect::<Vec<_>>());
    let b = model.param(&format!("{name}.bias"), vec![0.0; outputs]);
    Layer { w, b, inputs, outputs }
}

fn build(level: Level) -> libamp::Result<(Context, Network)> {
    let (mut model, mut seed) = (Model::new(), 1);
    model.op(linear::op());
    model.op(linear_dx::op().backward_of("linear")).op(linear_dw::op().backward_of("linear"));
    let layers = [layer(&mut model, "first", PIXELS, HIDDEN, &mut seed),
                  layer(&mut model, "second", HIDDEN, DIGITS, &mut seed)];
    let sgd = model.optimizer(&[layers[0].w, layers[0].b, layers[1].w, layers[1].b]);
    // Levels that keep 16-bit parameters do so in FP32 storage here.
    let amp = model.initialize(&Config::new(level).emulate(level.retypes()))?;
    Ok((amp, Network { layers, sgd }))
}

/// What backward needs again.
struct Activations {
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

fn forward(amp: &Context, net: &Network, images: &[f32]) -> Activations {
    let n = images.len() / PIXELS;
    let run = |layer: &Layer, x: &[f32]| {
        let mut y = vec![0.0; n * layer.outputs];
        linear(&mut y, x, amp.data(layer.w), amp.data(layer.b), n as i32, layer.inputs as i32, layer.outputs as i32);
        y
    };
    let mut hidden = run(&net.layers[0], images);
    hidden.iter_mut().for_each(|x| *x = x.max(0.0));
    let logits = run(&net.layers[1], &hidden);
    Activations { hidden, logits }
}

fn backward(amp: &mut impl Values, net: &Network, images: &[f32], hidden: &[f32], dlogits: &[f32]) {
    let n = (images.len() / PIXELS) as i32;
    layer_grads(amp, &net.layers[1], hidden, dlogits, n);
    let mut dhidden = vec![0.0; hidden.len()];
    linear_dx(&mut dhidden, dlogits, amp.data(net.layers[1].w), n, HIDDEN as i32, DIGITS as i32);
    dhidden.iter_mut().zip(hidden).filter(|(_, &x)| x == 0.0).for_each(|(dx, _)| *dx = 0.0);
    layer_grads(amp, &net.layers[0], images, &dhidden, n);
}

fn layer_grads(amp: &mut impl Values, layer: &Layer, x: &[f32], dy: &[f32], n: i32) {
    linear_dw(amp.grad_mut(layer.w), dy, x, n, layer.inputs as i32, layer.outputs as i32);
    add_rows(amp.grad_mut(layer.b), dy);
}

/// One iteration: the loss, and what was decided.
fn train(amp: &mut Context, net: &Network, images: &[f32], digits: &[usize]) -> libamp::Result<(f32, Action)> {
    let Activations { hidden, mut logits } = forward(amp, net, images);
    let loss = softmax(&mut logits, digits);
    amp.zero_grad(net.sgd);
    let mut bracket = amp.scale_loss(net.sgd)?;
    let seed = bracket.seed_factor() / digits.len() as f32;
    for (row, &digit) in logits.chunks_mut(DIGITS).zip(digits) {
        row[digit] -= 1.0;
        row.iter_mut().for_each(|x| *x *= seed);
    }
    backward(&mut bracket, net, images, &hidden, &logits);
    bracket.end()?;
    amp.clip_grad_norm(net.sgd, 5.0)?;
    let action = amp.step(net.sgd, |step| {
        for param in net.layers.iter().flat_map(|layer| [layer.w, layer.b]) {
            let (values, grad) = step.both_mut(param);
            values.iter_mut().zip(grad).for_each(|(x, g)| *x -= 0.3 * *g);
        }
    })?;
    Ok((loss, action))
}

// ---- the program ----

type Images = (Vec<f32>, Vec<usize>);

/// (for training, for the test)
fn read(path: &str) -> Result<(Images, Images), Box<dyn Error>> {
    let (mut train, mut test) = (Images::default(), Images::default());
    for (at, line) in std::fs::read_to_string(path)?.lines().enumerate() {
        let numbers = line.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
        let numbers = numbers.map_err(|error| format!("{path}:{}: {error}", at + 1))?;
        if numbers.len() != PIXELS + 1 || numbers[PIXELS] >= DIGITS {
            return Err(format!("{path}:{}: expected {PIXELS} pixels and a digit", at + 1).into());
        }
        let part = if at % 3 == 0 { &mut test } else { &mut train };
        part.0.extend(numbers[..PIXELS].iter().map(|&pixel| pixel as f32 / 16.0));
        part.1.push(numbers[PIXELS]);
    }
    Ok((train, test))
}

fn accuracy(amp: &Context, net: &Network, (images, digits): &Images) -> f32 {
    let Activations { logits, .. } = forward(amp, net, images);
    let best = |row: &[f32]| (0..DIGITS).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let right = logits.chunks(DIGITS).zip(digits).filter(|(row, &digit)| best(row) == Some(digit)).count();
    100.0 * right as f32 / digits.len() as f32
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, level) = match &arguments[..] {
        [path, level] => (path, level),
        _ => return Err("usage: digits FILE.csv LEVEL".into()),
    };
    let (images, test) = read(path)?;
    let (mut amp, net) = build(level.parse()?)?;
    let mut last = 0.0;
    for _ in 0..EPOCHS {
        for (images, digits) in images.0.chunks(BATCH * PIXELS).zip(images.1.chunks(BATCH)) {
            last = train(&mut amp, &net, images, digits)?.0;
        }
    }
    let record = amp.record(0)?;
    println!("{level}: {:.2} % right, loss {last:.6}, {} steps, {} skipped, scale {}", accuracy(&amp, &net, &test),
             record.brackets, record.skipped, record.scale_after);
    for op in amp.op_stats()? {
        println!("  {}: {} calls, last in type {}", op.name, op.calls, op.last_target);
    }
    println!("{}", amp.health()?.trim_end().rsplit('\n').next().unwrap_or_default());
    amp.shutdown()?;
    Ok(())
}
