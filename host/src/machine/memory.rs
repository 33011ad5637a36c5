//! This process's own memory.

/// Gives memory that was freed back to the kernel. Reading a configuration takes twenty times its
/// size for a moment, and glibc keeps what small pieces leave behind; elsewhere this does nothing.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and frees nothing that is in use (malloc_trim(3)).
    let _ = unsafe { libc::malloc_trim(0) };
}
