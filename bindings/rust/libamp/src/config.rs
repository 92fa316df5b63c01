// SPDX-License-Identifier: Apache-2.0
use crate::error::{c_string, check, Error, Result};
use crate::sys;
use std::ffi::CString;
use std::str::FromStr;

/// An opt level: `Level::O1`, or `"O1".parse()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(sys::amp_level);

macro_rules! levels {
    ($($name:ident = $value:ident),+) => { impl Level { $(pub const $name: Level = Level(sys::$value);)+ } };
}
sys::amp_levels!(levels);

impl Level {
    /// Are parameters 16 bits wide at this level, as at O2?
    pub fn retypes(self) -> bool {
        Config::new(self).retypes()
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(name: &str) -> Result<Level> {
        let (name, mut level) = (c_string(name)?, 0);
        // SAFETY: both live as long as the call
        check(unsafe { sys::amp_level_from_name(name.as_ptr(), &mut level) })?;
        Ok(Level(level))
    }
}

/// A level, and what is to be otherwise than by default: `amp_config`.
#[derive(Clone)]
pub struct Config {
    raw: sys::amp_config,
    trace: Option<CString>,
}

macro_rules! settings {
    ($($name:ident: $type:ty $(=> $convert:path)?),+ $(,)?) => {
        $(
            #[doc = concat!("`amp_config.", stringify!($name), "`")]
            #[must_use]
            pub fn $name(mut self, value: $type) -> Config {
                self.raw.$name = settings!(@value value $($convert)?);
                self
            }
        )+
    };
    (@value $value:ident $convert:path) => { $convert($value) };
    (@value $value:ident) => { $value };
}

fn switch(on: bool) -> sys::amp_switch {
    if on { sys::AMP_ON } else { sys::AMP_OFF }
}

impl Config {
    pub fn new(level: Level) -> Config {
        let mut raw = sys::amp_config::init();
        raw.level = level.0;
        Config { raw, trace: None }
    }

    settings! {
        enabled: bool => switch, patch_ops: bool => switch, keep_batchnorm_fp32: bool => switch,
        master_weights: bool => switch, cache: bool => switch, emulate: bool => switch, gate: bool => switch,
        check_finite: bool => switch, verify: bool => switch, observe: bool => switch,
        consecutive_hysteresis: bool => switch,
        cast_model_type: sys::amp_dtype, cast_model_outputs: sys::amp_dtype, lists: i32, scaler: i32, log: i32,
        num_losses: u32, window: u32, hysteresis: u32, max_skips: u32,
        loss_scale: f32, init_scale: f32, min_scale: f32, max_scale: f32, growth: f64, backoff: f64,
    }

    pub(crate) fn retypes(&self) -> bool {
        let mut resolved = sys::amp_config::init();
        // SAFETY: both live as long as the call
        let status = unsafe { sys::amp_config_resolve(&self.raw, &mut resolved) };
        status == sys::AMP_OK && [sys::AMP_FLOAT16, sys::AMP_BFLOAT16].contains(&resolved.cast_model_type)
    }

    /// A file that is told what happens, as JSON Lines.
    pub fn trace(mut self, file: &str) -> Result<Config> {
        self.trace = Some(c_string(file)?);
        Ok(self)
    }

    /// Valid as long as `self` is.
    pub(crate) fn raw(&self) -> sys::amp_config {
        let mut raw = self.raw;
        raw.trace = self.trace.as_ref().map_or(std::ptr::null(), |file| file.as_ptr());
        raw
    }
}
