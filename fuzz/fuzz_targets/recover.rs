//! Arbitrary bytes in place of the buffer's segments, spill files, checkpoints and key files.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = consign_buffer::fuzz::recover(input);
});
