// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, Error, Result};
use crate::sys;
use std::marker::PhantomData;
use std::os::raw::c_void;

/// Elements that are read: FP32, or the bits of a 16-bit type (`sys::AMP_FLOAT16`, `sys::AMP_BFLOAT16`). Slices of
/// `half::bf16` give them by `reinterpret_cast` of `half::slice::HalfFloatSliceExt`.
#[derive(Clone, Copy)]
pub enum Elements<'a> {
    Full(&'a [f32]),
    Low(sys::amp_dtype, &'a [u16]),
}

/// Elements that are written.
pub enum ElementsMut<'a> {
    Full(&'a mut [f32]),
    Low(sys::amp_dtype, &'a mut [u16]),
}

impl Elements<'_> {
    pub(crate) fn parts(&self) -> (sys::amp_dtype, *const c_void, usize) {
        match self {
            Elements::Full(values) => (sys::AMP_FLOAT32, values.as_ptr().cast(), values.len()),
            Elements::Low(dtype, bits) => (low(*dtype), bits.as_ptr().cast(), bits.len()),
        }
    }
}

impl ElementsMut<'_> {
    pub(crate) fn parts(&mut self) -> (sys::amp_dtype, *mut c_void, usize) {
        match self {
            ElementsMut::Full(values) => (sys::AMP_FLOAT32, values.as_mut_ptr().cast(), values.len()),
            ElementsMut::Low(dtype, bits) => (low(*dtype), bits.as_mut_ptr().cast(), bits.len()),
        }
    }
}

/// Any other type is none, which libamp refuses: nothing is read as what it is not.
fn low(dtype: sys::amp_dtype) -> sys::amp_dtype {
    if dtype == sys::AMP_FLOAT16 || dtype == sys::AMP_BFLOAT16 { dtype } else { sys::AMP_DTYPE_OTHER }
}

/// d = a * b + bias, row by row, in FP32 and rounded once: `matmul(m, n, k, a, b).transpose_b().bias(bias).write(d)`.
pub struct Matmul<'a> {
    raw: sys::amp_matmul_args,
    lengths: [(&'static str, usize, i64, i64); 3],
    operands: PhantomData<Elements<'a>>,
}

/// a is [m, k], b is [k, n].
pub fn matmul<'a>(m: i64, n: i64, k: i64, a: Elements<'a>, b: Elements<'a>) -> Matmul<'a> {
    let mut raw = sys::amp_matmul_args::init();
    (raw.m, raw.n, raw.k) = (m, n, k);
    let (a, b) = (a.parts(), b.parts());
    (raw.a_dtype, raw.a, raw.b_dtype, raw.b) = (a.0, a.1, b.0, b.1);
    Matmul { raw, lengths: [("a", a.2, m, k), ("b", b.2, k, n), ("bias", 0, 0, 0)], operands: PhantomData }
}

impl<'a> Matmul<'a> {
    /// a is stored [k, m].
    #[must_use]
    pub fn transpose_a(mut self) -> Self {
        self.raw.transpose_a = 1;
        self
    }

    /// b is stored [n, k].
    #[must_use]
    pub fn transpose_b(mut self) -> Self {
        self.raw.transpose_b = 1;
        self
    }

    /// n elements that are added to each row.
    #[must_use]
    pub fn bias(mut self, bias: Elements<'a>) -> Self {
        let bias = bias.parts();
        (self.raw.bias_dtype, self.raw.bias) = (bias.0, bias.1);
        self.lengths[2] = ("bias", bias.2, 1, self.raw.n);
        self
    }

    /// d += a * b, where `write` would overwrite it.
    pub fn add_to(mut self, mut d: ElementsMut<'_>) -> Result<()> {
        let (dtype, data, _) = d.parts();
        (self.raw.c_dtype, self.raw.c, self.raw.beta) = (dtype, data, 1.0);
        self.write(d)
    }

    /// d, [m, n], becomes the product.
    pub fn write(mut self, mut d: ElementsMut<'_>) -> Result<()> {
        let (dtype, data, length) = d.parts();
        (self.raw.d_dtype, self.raw.d) = (dtype, data);
        for (name, length, rows, columns) in self.lengths.into_iter().chain([("d", length, self.raw.m, self.raw.n)]) {
            if rows.checked_mul(columns) != i64::try_from(length).ok() {
                return Err(Error::invalid(format!("{name} has {length} elements, not {rows} * {columns}")));
            }
        }
        // SAFETY: the operands are as long as their extents say, and d is borrowed from nobody else
        check(unsafe { sys::amp_matmul(&self.raw) })
    }
}
