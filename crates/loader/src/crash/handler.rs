//! The signal handler: all of the unsafe code of crash notes.

use super::{MAGIC, table};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

/// What ends a process from inside.
const SIGNALS: [libc::c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
];

/// Room for a note of a full table, taken beforehand: a full disk must not keep it from being written.
const ROOM: libc::off_t = 512 << 10;

/// The file for the note; -1 before [`watch`].
static NOTE: AtomicI32 = AtomicI32::new(-1);
static RUN: AtomicU64 = AtomicU64::new(0);
/// 0 before a crash, 1 while the note is written, 2 after that.
static WRITING: AtomicU8 = AtomicU8::new(0);

/// From here on a crash is noted in this empty file, under the number of this run. The handler stays
/// for the life of the process; a second call only changes file and number.
///
/// # Errors
/// The system refuses the handler.
pub fn watch(note: File, run: u64) -> io::Result<()> {
    // SAFETY: an open file and a size; a file system that cannot do it says so, and then the note is
    // written without room of its own.
    unsafe { libc::fallocate(note.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, ROOM) };
    RUN.store(run, Ordering::SeqCst);
    let before = NOTE.swap(note.into_raw_fd(), Ordering::SeqCst);
    if before >= 0 {
        // SAFETY: `watch` owned it, and from the swap on no handler takes it up.
        unsafe { libc::close(before) };
    }
    for signal in SIGNALS {
        // SAFETY: an all-zero `sigaction` is a valid value; each field that matters is set below.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_crash as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: pointers to live values of this frame; `on_crash` has the signature that
        // SA_SIGINFO asks for, and does only what a signal handler may do.
        let result = unsafe {
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Notes the crash, then lets the signal do what it does by default.
extern "C" fn on_crash(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands over a valid `siginfo_t` with SA_SIGINFO; `si_pid` is read only where
    // the code says that a process sent the signal. `getpid` may be called in a handler.
    let by_another = unsafe { (*info).si_code <= 0 && (*info).si_pid() != libc::getpid() };
    if !by_another {
        note_once(signal);
    }
    // SAFETY: both may be called in a handler. The signal is blocked until this returns, and then
    // meets the default action.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Writes the note, if no other thread did; waits for one that is at it.
fn note_once(signal: libc::c_int) {
    if WRITING
        .compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
    {
        write_note(signal);
        WRITING.store(2, Ordering::SeqCst);
        return;
    }
    // At most a second: the other thread only writes a file.
    for _ in 0..100 {
        if WRITING.load(Ordering::SeqCst) == 2 {
            return;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        // SAFETY: a live value and no second argument; it may be called in a handler.
        unsafe { libc::nanosleep(&raw const pause, ptr::null_mut()) };
    }
}

fn write_note(signal: libc::c_int) {
    let file = NOTE.load(Ordering::SeqCst);
    if file < 0 {
        return;
    }
    let mut note = Writer::new(file);
    note.text(MAGIC.as_bytes());
    note.text(b"\nrun ");
    note.hex(RUN.load(Ordering::SeqCst));
    note.text(b"\nat ");
    note.decimal(now_unix_ms());
    note.text(b"\nsignal ");
    note.decimal(u64::from(signal.unsigned_abs()));
    note.text(b"\nthread ");
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes to its argument. A system call may be made here.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    note.text(name.get(..end).unwrap_or(&[]));
    note.text(b"\n");
    let mut listed = 0_u64;
    let unlisted = table::for_each(|lane, seq| {
        listed = listed.saturating_add(1);
        note.text(b"write ");
        note.decimal(lane);
        note.text(b" ");
        note.decimal(seq);
        note.text(b"\n");
    });
    note.text(b"unlisted ");
    note.decimal(unlisted);
    note.text(b"\nend\n");
    note.flush();
    let mut said = Writer::new(libc::STDERR_FILENO);
    said.text(b"consign: ended by signal ");
    said.decimal(u64::from(signal.unsigned_abs()));
    said.text(b" in thread ");
    said.text(name.get(..end).unwrap_or(&[]));
    said.text(b"; plugins had ");
    said.decimal(listed.saturating_add(unlisted));
    said.text(b" writes, noted for the next start\n");
    said.flush();
}

fn now_unix_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live value to write to; it may be called in a handler.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000)
        .saturating_add(nanos / 1_000_000)
}

/// Gathers a few lines on the stack and writes them.
struct Writer {
    file: libc::c_int,
    bytes: [u8; 512],
    len: usize,
}

impl Writer {
    fn new(file: libc::c_int) -> Self {
        Self {
            file,
            bytes: [0; 512],
            len: 0,
        }
    }

    fn text(&mut self, text: &[u8]) {
        for byte in text {
            if self.len == self.bytes.len() {
                self.flush();
            }
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn decimal(&mut self, number: u64) {
        self.number(number, 10, 1);
    }

    fn hex(&mut self, number: u64) {
        self.number(number, 16, 16);
    }

    fn number(&mut self, mut number: u64, base: u64, at_least: usize) {
        let mut digits = [0_u8; 20];
        let mut len = 0;
        while number > 0 || len < at_least {
            let digit = u8::try_from(number % base).unwrap_or(0);
            let Some(place) = digits.get_mut(len) else {
                break;
            };
            *place = if digit < 10 {
                b'0' + digit
            } else {
                b'a' + (digit - 10)
            };
            number /= base;
            len += 1;
        }
        for at in (0..len).rev() {
            self.text(digits.get(at..=at).unwrap_or(&[]));
        }
    }

    /// What cannot be written is left out: there is nobody to tell.
    fn flush(&mut self) {
        let mut from = 0;
        while from < self.len {
            let rest = self.bytes.get(from..self.len).unwrap_or(&[]);
            // SAFETY: a live buffer and its length; it may be called in a handler.
            let wrote = unsafe { libc::write(self.file, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(wrote) {
                Ok(wrote) if wrote > 0 => from += wrote,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.len = 0;
    }
}
