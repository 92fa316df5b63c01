// SPDX-License-Identifier: Apache-2.0
use crate::sys;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::c_char;

/// What a call of libamp's that failed says. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: sys::amp_status,
    message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// `sys::AMP_ERR_...`
    pub fn status(&self) -> sys::amp_status {
        self.status
    }

    /// What was wrong, where, and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn new(status: sys::amp_status, message: String) -> Error {
        Error { status, message }
    }

    pub(crate) fn invalid(message: String) -> Error {
        Error::new(sys::AMP_ERR_INVALID_ARGUMENT, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: any status has a name, which is static
        write!(out, "{}: {}", unsafe { text(sys::amp_status_name(self.status)) }, self.message)
    }
}

impl std::error::Error for Error {}

/// # Safety
/// `pointer` is NULL or a string that ends.
pub(crate) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    CStr::from_ptr(pointer).to_string_lossy().into_owned()
}

pub(crate) fn check(status: sys::amp_status) -> Result<()> {
    if status == sys::AMP_OK {
        return Ok(());
    }
    // SAFETY: the text is this thread's, and copied before its next call
    Err(Error { status, message: unsafe { text(sys::amp_last_error()) } })
}

/// A text of libamp's, which a first call measures.
pub(crate) fn written(call: impl Fn(*mut c_char, usize, *mut usize) -> sys::amp_status) -> Result<String> {
    let mut length = 0;
    check(call(std::ptr::null_mut(), 0, &mut length))?;
    let mut bytes = vec![0u8; length + 1];
    check(call(bytes.as_mut_ptr().cast(), bytes.len(), &mut length))?;
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} has a zero byte")))
}
