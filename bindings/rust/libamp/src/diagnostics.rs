// SPDX-License-Identifier: Apache-2.0
use crate::context::{action, Action, Context};
use crate::error::{check, text, written, Result};
use crate::sys;

/// The last bracket of a loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub action: Action,
    pub scale_before: f32,
    pub scale_after: f32,
    /// decided so far
    pub brackets: u64,
    /// of them with an overflow
    pub skipped: u64,
    /// the parameter whose gradient was not finite at the last overflow
    pub first_nonfinite: Option<String>,
}

/// What the policy did with an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpStats {
    pub name: String,
    pub class: sys::amp_class,
    /// the type chosen at the last call
    pub last_target: sys::amp_dtype,
    pub calls: u64,
    pub casts: u64,
    pub overflowed: u64,
}

impl Context {
    /// The level, warnings, and for each op its class and why.
    pub fn explain(&self) -> Result<String> {
        // SAFETY: the context is ours, and text has room for what was measured
        written(|text, capacity, length| unsafe {
            sys::amp_explain(self.as_ptr(), std::ptr::null(), text, capacity, length)
        })
    }

    /// What is wrongly wired, in words; the last line is `sound` where nothing is.
    pub fn health(&self) -> Result<String> {
        // SAFETY: as explain
        written(|text, capacity, length| unsafe { sys::amp_health(self.as_ptr(), text, capacity, length) })
    }

    pub fn record(&self, loss: u32) -> Result<Record> {
        let mut raw = sys::amp_record::init();
        // SAFETY: the record is as large as it says
        check(unsafe { sys::amp_get_record(self.as_ptr(), loss, &mut raw) })?;
        // SAFETY: NULL or a string of the context's
        let first = (!raw.first_nonfinite.is_null()).then(|| unsafe { text(raw.first_nonfinite) });
        Ok(Record { action: action(raw.action), scale_before: raw.scale_before, scale_after: raw.scale_after,
                    brackets: raw.brackets, skipped: raw.skipped, first_nonfinite: first })
    }

    pub fn op_stats(&self) -> Result<Vec<OpStats>> {
        let mut count = 0;
        // SAFETY: counts; then there is room for so many
        check(unsafe { sys::amp_get_op_stats(self.as_ptr(), std::ptr::null_mut(), 0, &mut count) })?;
        let mut stats = vec![sys::amp_op_stats::init(); count];
        check(unsafe { sys::amp_get_op_stats(self.as_ptr(), stats.as_mut_ptr(), count, &mut count) })?;
        let of = |raw: &sys::amp_op_stats| OpStats {
            name: unsafe { text(raw.name) }, // SAFETY: a string of the context's
            class: raw.op_class, last_target: raw.last_target, calls: raw.calls, casts: raw.casts,
            overflowed: raw.overflowed,
        };
        Ok(stats.iter().map(of).collect())
    }
}
