// SPDX-License-Identifier: Apache-2.0
//! Where libamp.so is: LIBAMP_LIB_DIR, or what pkg-config says.
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=LIBAMP_LIB_DIR");
    let said = || Command::new("pkg-config").args(["--variable=libdir", "libamp"]).output().ok();
    let folder = std::env::var("LIBAMP_LIB_DIR").ok().or_else(|| String::from_utf8(said()?.stdout).ok());
    if let Some(folder) = folder.filter(|folder| !folder.trim().is_empty()) {
        println!("cargo:rustc-link-search=native={}", folder.trim());
    }
}
