//! A stack of its own for signal handlers, for each thread that asks.
//!
//! A stack overflow is a signal, too, and its handler has no room on the stack that ran over. The
//! standard library gives its threads another one, but only in a program, not in a library that
//! brings its own copy of it, as every plugin does.

use std::cell::Cell;
use std::ptr;

/// Room for the host's handler, which keeps a line or two on its stack, over what the processor's
/// registers take.
const ROOM: usize = 32 << 10;

struct Stack {
    base: *mut libc::c_void,
    len: usize,
}

impl Drop for Stack {
    fn drop(&mut self) {
        let off = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: self.len,
        };
        // SAFETY: `off` lives through the call; the thread ends, so nothing runs on its other stack,
        // and the mapping was made by `alternate_stack` and is given back once.
        unsafe {
            libc::sigaltstack(&raw const off, ptr::null_mut());
            libc::munmap(self.base, self.len);
        }
    }
}

thread_local! {
    static STACK: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// Gives the calling thread another stack for signal handlers, until it ends. Does nothing where it
/// has one. A system that refuses leaves the thread as it is: only the note of a stack overflow is
/// lost by that.
pub fn alternate_stack() {
    let mut now = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: asks only; `now` lives through the call.
    let asked = unsafe { libc::sigaltstack(ptr::null(), &raw mut now) };
    if asked != 0 || now.ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    // SAFETY: reads a constant of the system; 0 where it is not known.
    let registers = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    let len = ROOM
        .saturating_add(usize::try_from(registers).unwrap_or(0))
        .max(libc::SIGSTKSZ);
    // SAFETY: a new private mapping at a place of the system's choice.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return;
    }
    let stack = Stack { base, len };
    let on = libc::stack_t {
        ss_sp: base,
        ss_flags: 0,
        ss_size: len,
    };
    // SAFETY: `on` lives through the call, the mapping until the thread ends.
    if unsafe { libc::sigaltstack(&raw const on, ptr::null_mut()) } == 0 {
        STACK.set(Some(stack));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_one() -> bool {
        let mut now = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: 0,
            ss_size: 0,
        };
        // SAFETY: asks only.
        unsafe { libc::sigaltstack(ptr::null(), &raw mut now) };
        now.ss_flags & libc::SS_DISABLE == 0
    }

    #[test]
    fn a_thread_without_one_gets_one_and_others_keep_theirs() {
        std::thread::spawn(|| {
            let off = libc::stack_t {
                ss_sp: ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: 0,
            };
            // SAFETY: takes away what the standard library gave, as in a plugin's thread.
            unsafe { libc::sigaltstack(&raw const off, ptr::null_mut()) };
            assert!(!has_one());
            alternate_stack();
            assert!(has_one());
            alternate_stack();
            assert!(has_one(), "asked again");
        })
        .join()
        .unwrap();
    }
}
